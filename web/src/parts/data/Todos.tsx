import { Icon, type IconName } from "../../ui/icons.tsx";
import { fields, list, text } from "./fields.ts";

const MARKS: Record<string, [IconName, string]> = {
  pending: ["circle", "to do"],
  in_progress: ["chevron", "in progress"],
  completed: ["check", "done"],
  cancelled: ["close", "cancelled"],
};

/** The list of what an agent means to do: `{todos: [{content, status}]}`. */
export function Todos({ data }: { data: unknown }) {
  const todos = list(fields(data).todos).map(fields);
  const done = todos.filter(({ status }) => status === "completed").length;
  return (
    <section className="card" aria-label="To do">
      <p className="card-title">
        To do
        <span className="muted">
          {done} of {todos.length}
        </span>
      </p>
      <ul className="todos">
        {todos.map((todo, index) => {
          const [icon, label] = MARKS[text(todo.status)] ?? ["circle", text(todo.status)];
          return (
            <li key={text(todo.id) || index} className={`todo ${text(todo.status)}`}>
              <Icon name={icon} />
              <span dir="auto">{text(todo.content)}</span>
              <span className="unseen">{label}</span>
            </li>
          );
        })}
      </ul>
    </section>
  );
}
