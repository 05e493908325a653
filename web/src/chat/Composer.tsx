import { type ClipboardEvent, type FormEvent, type KeyboardEvent, useEffect, useLayoutEffect, useRef, useState } from "react";

import { Icon } from "../ui/icons.tsx";

interface Props {
  running: boolean;
  /** Files that were dropped on the chat. */
  dropped: File[];
  send: (text: string, files: File[]) => void;
  stop: () => void;
}

// A request may have 10 MB, and base64 makes files a third larger.
const MOST_BYTES = 7_000_000;

export function Composer({ running, dropped, send, stop }: Props) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState<File[]>([]);
  const [problem, setProblem] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);

  useLayoutEffect(() => {
    const area = box.current;
    if (area === null) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, 220)}px`;
  }, [text]);

  const add = (more: Iterable<File>) => {
    const all = [...files, ...more];
    const isTooMuch = all.reduce((sum, file) => sum + file.size, 0) > MOST_BYTES;
    setProblem(isTooMuch ? "Files of 7 MB in all can be sent." : "");
    if (!isTooMuch) setFiles(all);
  };
  useEffect(() => add(dropped), [dropped]);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (running || (text.trim() === "" && files.length === 0)) return;
    send(text, files);
    setText("");
    setFiles([]);
    setProblem("");
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === "Escape" && running) stop();
    // While a word is being composed, as in Japanese, Enter belongs to the composition.
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    submit(event);
  };
  const paste = (event: ClipboardEvent) => {
    if (event.clipboardData.files.length > 0) add(event.clipboardData.files);
  };

  return (
    <form className="composer" onSubmit={submit}>
      {problem && <p role="alert" className="problem">{problem}</p>}
      {files.length > 0 && (
        <ul className="attached" aria-label="Attached files">
          {files.map((file, index) => (
            <li key={index} className="source">
              <Icon name="file" />
              <span dir="auto">{file.name}</span>
              <button type="button" className="button quiet" aria-label={`Remove ${file.name}`} onClick={() => setFiles(files.filter((other) => other !== file))}>
                <Icon name="close" />
              </button>
            </li>
          ))}
        </ul>
      )}
      <textarea
        ref={box}
        aria-label="Message"
        placeholder="Write a message"
        rows={1}
        value={text}
        autoFocus
        dir="auto"
        onChange={(event) => setText(event.target.value)}
        onKeyDown={press}
        onPaste={paste}
      />
      <div className="composer-row">
        <input ref={picker} type="file" multiple hidden aria-hidden="true" tabIndex={-1} onChange={(event) => {
          add(event.target.files ?? []);
          event.target.value = "";
        }} />
        <button type="button" className="button quiet" aria-label="Attach files" title="Attach files" onClick={() => picker.current?.click()}>
          <Icon name="attach" />
        </button>
        <span className="hint">Enter sends, Shift and Enter begins a line</span>
        {running ? (
          <button type="button" className="button round" aria-label="Stop" title="Stop" onClick={stop}>
            <Icon name="stop" />
          </button>
        ) : (
          <button className="button round primary" aria-label="Send" title="Send" disabled={text.trim() === "" && files.length === 0}>
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}
