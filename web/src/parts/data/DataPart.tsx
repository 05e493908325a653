import { Fold } from "../../ui/Fold.tsx";
import { Json } from "../../ui/Json.tsx";
import { EventLine, isEvent } from "./Events.tsx";
import { fields } from "./fields.ts";
import { Question } from "./Question.tsx";
import { AgentError, AgentStatus, Edge, FlowStatus, NodeStatus } from "./Status.tsx";
import { Todos } from "./Todos.tsx";

const VIEWS: Record<string, (given: { data: unknown }) => React.ReactNode> = {
  todos: Todos,
  "todos-changed": Todos,
  "agent-status": AgentStatus,
  "agent-error": AgentError,
  "flow-status": FlowStatus,
  node: NodeStatus,
};

interface Props {
  /** The part's type without `data-`. */
  name: string;
  data: unknown;
  answer: (questionId: string, value: string) => void;
}

/** A data part by its name; one that is not known is shown as JSON. */
export function DataPart({ name, data, answer }: Props) {
  if (name === "question") return <Question data={data} answer={answer} />;
  if (isEvent(name)) return <EventLine name={name} data={data} />;
  if (name === "flow-event" && fields(data).type === "edge:fire") return <Edge data={data} />;
  const View = Object.hasOwn(VIEWS, name) ? VIEWS[name] : undefined;
  if (View !== undefined) return <View data={data} />;
  return (
    <Fold className="card" summary={<span className="card-title">{name}</span>}>
      <Json value={data} label={name} />
    </Fold>
  );
}
