import { useState } from "react";

import { token } from "../session.ts";

/** Asks for the bearer token that a server wants. Only this tab keeps it. */
export function SignIn({ done }: { done: () => void }) {
  const [value, setValue] = useState("");
  return (
    <main className="signin">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          token.set(value.trim());
          setValue("");
          done();
        }}
      >
        <h1>Who is asking?</h1>
        <p className="muted">This server wants a bearer token. The page keeps it until this tab is closed.</p>
        {token.get() !== "" && <p role="alert" className="problem">The server did not take that token.</p>}
        <input
          className="field"
          type="password"
          aria-label="Token"
          placeholder="Token"
          autoComplete="off"
          autoFocus
          required
          value={value}
          onChange={(event) => setValue(event.target.value)}
        />
        <button className="button primary wide">Continue</button>
      </form>
    </main>
  );
}
