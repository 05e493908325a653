/** Drawn here, so that nothing has to be loaded. All are decoration: the name stands beside them or on their button. */

const PATHS = {
  alert: "M12 8v5M12 16.5v.01M12 3.5 21 19H3z",
  attach: "m20 11-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.4 8.4a2 2 0 0 1-2.8-2.8L14.500 7",
  brain: "M12 5a3 3 0 0 0-5.500 1.500A3.200 3.200 0 0 0 5 12a3.200 3.200 0 0 0 2 5.500A3 3 0 0 0 12 19zm0 0a3 3 0 0 1 5.500 1.500A3.200 3.200 0 0 1 19 12a3.200 3.200 0 0 1-2 5.500A3 3 0 0 1 12 19z",
  check: "m5 12.500 4.500 4.500L19 7.500",
  chevron: "m9 6 6 6-6 6",
  circle: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16z",
  close: "m6 6 12 12M18 6 6 18",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  down: "M12 5v14M6 13l6 6 6-6",
  edit: "m4 20 1-4L16 5l3 3L8 19zM14 7l3 3",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  flow: "M6 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4zm12 12a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM6 8v4a4 4 0 0 0 4 4h6",
  globe: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM4 12h16M12 4c5 5 5 11 0 16M12 4c-5 5-5 11 0 16",
  inspect: "M4 6h16M4 12h10M4 18h6m5-1 5 3m-3.500-6.500a3 3 0 1 0 0 .01",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  question: "M9.500 9a2.500 2.500 0 1 1 3.500 2.300c-.7.3-1 .8-1 1.700M12 16.500v.01M12 3.500a8.500 8.500 0 1 0 0 17 8.500 8.500 0 0 0 0-17z",
  redo: "M19 12a7 7 0 1 1-2.300-5.200M19 4v4h-4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.500 7.500h9v9h-9z",
  terminal: "m5 8 4 4-4 4M12 16h7",
  tool: "M14.500 6.500a4 4 0 0 0-5 5L4 17l3 3 5.500-5.500a4 4 0 0 0 5-5l-2.500 2.500-2.500-.5-.5-2.500z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  users: "M9 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM3.500 19c0-3 2.500-5 5.500-5s5.500 2 5.500 5M16 5.500a3 3 0 0 1 0 5.500M17 14.300c2.200.5 3.500 2.200 3.500 4.700",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
