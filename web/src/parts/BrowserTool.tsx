import { useState } from "react";

interface Props {
  output: (value: unknown) => void;
  fail: (text: string) => void;
}

/** A call that the agent left to the browser: the user types its output, JSON or any text. */
export function BrowserTool({ output, fail }: Props) {
  const [text, setText] = useState("");
  return (
    <form
      className="approval"
      aria-label="Output of the tool"
      onSubmit={(event) => {
        event.preventDefault();
        output(valueOf(text));
      }}
    >
      <p>The agent waits for the browser to do this. What came of it?</p>
      <textarea
        className="field"
        aria-label="Output"
        rows={2}
        placeholder='Text, or JSON such as {"ok": true}'
        value={text}
        onChange={(event) => setText(event.target.value)}
        dir="auto"
      />
      <div className="row">
        <button className="button primary">Submit</button>
        <button type="button" className="button" onClick={() => fail(text.trim() || "It failed in the browser.")}>
          Report a failure
        </button>
      </div>
    </form>
  );
}

function valueOf(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
