import { useEffect, useState } from "react";

import { Icon } from "./icons.tsx";

/** Puts a text into the clipboard, and says for a moment that it did. */
export function CopyButton({ text, label = "Copy", shown }: { text: () => string; label?: string; shown?: string }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return undefined;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [isDone]);
  const copy = () => void navigator.clipboard.writeText(text()).then(() => setDone(true));
  return (
    <button type="button" className={shown ? "button small" : "button quiet"} aria-label={label} title={label} onClick={copy}>
      <Icon name={isDone ? "check" : "copy"} />
      {shown}
      {isDone && (
        <span role="status" className="unseen">
          Copied
        </span>
      )}
    </button>
  );
}
