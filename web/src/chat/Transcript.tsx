import { type ReactNode, useEffect, useRef, useState } from "react";

import { Icon } from "../ui/icons.tsx";

const NEAR = 80;

interface Props {
  busy: boolean;
  /** How many messages there are. A new one is scrolled into view. */
  count: number;
  children: ReactNode;
}

/** The messages. The view stays at their end as they grow, unless the user has scrolled away. */
export function Transcript({ busy, count, children }: Props) {
  const outer = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const before = useRef(0);
  const [isAway, setAway] = useState(false);

  useEffect(() => {
    if (inner.current === null) return undefined;
    const watch = new ResizeObserver(() => {
      if (follows.current) outer.current?.scrollTo({ top: outer.current.scrollHeight });
    });
    watch.observe(inner.current);
    return () => watch.disconnect();
  }, []);

  useEffect(() => {
    // The welcome before the first message is shown from its beginning.
    follows.current = count > 0;
    setAway(false);
    if (count > 0) outer.current?.scrollTo({ top: outer.current.scrollHeight });
  }, [count]);

  useEffect(() => {
    // When a focused button disappears, the focus falls back to the top of the page, before the list of chats.
    if (document.activeElement === document.body) outer.current?.focus({ preventScroll: true });
  }, [busy]);

  const look = () => {
    const area = outer.current;
    if (area === null) return;
    const isNear = area.scrollHeight - area.scrollTop - area.clientHeight < NEAR;
    // Text that grows below never scrolls up, so the user did.
    if (isNear) follows.current = true;
    else if (area.scrollTop < before.current) follows.current = false;
    before.current = area.scrollTop;
    setAway(!follows.current);
  };
  const back = () => {
    follows.current = true;
    outer.current?.scrollTo({ top: outer.current.scrollHeight });
  };

  return (
    <div className="transcript-frame">
      <div className="transcript" ref={outer} onScroll={look} tabIndex={0} role="log" aria-label="Transcript" aria-busy={busy}>
        <div className="column" ref={inner}>
          {children}
        </div>
      </div>
      {isAway && count > 0 && (
        <button type="button" className="button round latest" aria-label="To the end" title="To the end" onClick={back}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}
