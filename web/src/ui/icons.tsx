/** Inline, so that nothing has to be loaded. All are decoration: their buttons have a name. */

import { Drawing, ICONS } from "../react.ts";

const PATHS = {
  ...ICONS,
  attach: "m20 11-8.5 8.5a5 5 0 0 1-7-7L13 4a3.5 3.5 0 0 1 5 5l-8.4 8.4a2 2 0 0 1-2.8-2.8L14.500 7",
  brain: "M12 5a3 3 0 0 0-5.500 1.500A3.200 3.200 0 0 0 5 12a3.200 3.200 0 0 0 2 5.500A3 3 0 0 0 12 19zm0 0a3 3 0 0 1 5.500 1.500A3.200 3.200 0 0 1 19 12a3.200 3.200 0 0 1-2 5.500A3 3 0 0 1 12 19z",
  copy: "M9 9h10v11H9zM15 9V4H5v11h4",
  down: "M12 5v14M6 13l6 6 6-6",
  inspect: "M4 6h16M4 12h10M4 18h6m5-1 5 3m-3.500-6.500a3 3 0 1 0 0 .01",
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  redo: "M19 12a7 7 0 1 1-2.300-5.200M19 4v4h-4",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.500 7.500h9v9h-9z",
  tool: "M14.500 6.500a4 4 0 0 0-5 5L4 17l3 3 5.500-5.500a4 4 0 0 0 5-5l-2.500 2.500-2.500-.5-.5-2.500z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return <Drawing d={PATHS[name]} />;
}
