import { useId, useState } from "react";

import { Icon } from "../../ui/icons.tsx";
import { fields, list, text } from "./fields.ts";

interface Choice {
  label: string;
  value: string;
}

function choice(option: unknown): Choice {
  const { label, value, id } = fields(option);
  const shown = text(option) || text(label) || text(value) || text(id);
  return { label: shown, value: text(option) || text(value) || text(id) || shown };
}

/** A question of the agent's: `{questionId, state, text, options?, actions?, answer?}`. */
export function Question({ data, answer }: { data: unknown; answer: (id: string, value: string) => void }) {
  const question = fields(data);
  const heading = useId();
  const [isSent, setSent] = useState(false);
  const [own, setOwn] = useState("");
  const choices = [...list(question.options), ...list(question.actions)].map(choice);
  const isOpen = question.state === "open" && !isSent;
  const give = (value: string) => {
    setSent(true);
    answer(text(question.questionId), value);
  };
  return (
    <section className="card ask" aria-labelledby={heading}>
      <p id={heading} className="card-title" dir="auto">
        <Icon name="question" />
        {text(question.text)}
      </p>
      {isOpen && choices.length > 0 && (
        <div className="row">
          {choices.map(({ label, value }) => (
            <button key={value} type="button" className="button" dir="auto" onClick={() => give(value)}>
              {label}
            </button>
          ))}
        </div>
      )}
      {isOpen && choices.length === 0 && (
        <form
          className="row"
          onSubmit={(event) => {
            event.preventDefault();
            if (own.trim()) give(own.trim());
          }}
        >
          <input className="field" aria-label="Answer" value={own} onChange={(event) => setOwn(event.target.value)} dir="auto" />
          <button className="button">Answer</button>
        </form>
      )}
      {question.state === "answered" && (
        <p className="muted" dir="auto">
          Answered: {text(question.answer)}
        </p>
      )}
      {question.state === "expired" && <p className="muted">Nobody answered in time.</p>}
    </section>
  );
}
