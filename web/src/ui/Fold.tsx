import { type ReactNode, useId, useState } from "react";

import { Icon } from "./icons.tsx";

interface Props {
  summary: ReactNode;
  /** Whether it is open as long as the user has not said otherwise. */
  open?: boolean;
  className?: string;
  children: ReactNode;
}

/** A heading that shows and hides what is below it. */
export function Fold({ summary, open = false, className = "", children }: Props) {
  const [chosen, setChosen] = useState<boolean>();
  const body = useId();
  const isOpen = chosen ?? open;
  return (
    <div className={`fold ${className}`}>
      <button type="button" className="fold-head" aria-expanded={isOpen} aria-controls={body} onClick={() => setChosen(!isOpen)}>
        {summary}
        <span className="fold-mark">
          <Icon name="chevron" />
        </span>
      </button>
      <div id={body} className="fold-body" hidden={!isOpen}>
        {isOpen && children}
      </div>
    </div>
  );
}
