import { useState } from "react";

interface Props {
  text: string;
  save: (text: string) => void;
  cancel: () => void;
}

/** Edits a sent message. The agent then answers it again. */
export function Editor({ text, save, cancel }: Props) {
  const [changed, setChanged] = useState(text);
  return (
    <form
      className="editor"
      onSubmit={(event) => {
        event.preventDefault();
        if (changed.trim()) save(changed);
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") cancel();
      }}
    >
      <textarea
        className="field"
        aria-label="Your words"
        autoFocus
        rows={3}
        value={changed}
        onChange={(event) => setChanged(event.target.value)}
        dir="auto"
      />
      <div className="row end">
        <button type="button" className="button" onClick={cancel}>
          Cancel
        </button>
        <button className="button primary">Save</button>
      </div>
    </form>
  );
}
