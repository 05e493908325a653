import { Icon } from "../../ui/icons.tsx";
import { fields, text } from "./fields.ts";

/** What the agent is doing: `{status, detail?, position?}`. */
export function AgentStatus({ data }: { data: unknown }) {
  const { status, detail, position } = fields(data);
  const place = text(position) && `, place ${text(position)}`;
  return (
    <p className={`pill ${text(status)}`}>
      <span className="dot" />
      <span dir="auto">
        Agent: {text(status)}
        {place}
        {text(detail) && ` – ${text(detail)}`}
      </span>
    </p>
  );
}

/** Where a flow is: `{status, flowName}`. */
export function FlowStatus({ data }: { data: unknown }) {
  const { status, flowName } = fields(data);
  return (
    <p className={`pill ${text(status)}`}>
      <Icon name="flow" />
      <span dir="auto">
        {text(flowName) || "Flow"}: {text(status)}
      </span>
    </p>
  );
}

/** Where a node of a flow is: `{nodeId, status, reason?}`. */
export function NodeStatus({ data }: { data: unknown }) {
  const { nodeId, status, reason } = fields(data);
  return (
    <p className={`node ${text(status)}`}>
      <span className="dot" />
      <b dir="auto">{text(nodeId)}</b>
      <span className="muted" dir="auto">
        {text(status)}
        {text(reason) && `, ${text(reason)}`}
      </span>
    </p>
  );
}

/** The way from one node of a flow to the next: `{type: "edge:fire", from, to}`. */
export function Edge({ data }: { data: unknown }) {
  const { from, to } = fields(data);
  return (
    <p className="event">
      <Icon name="flow" />
      <span dir="auto">
        {text(from)} → {text(to)}
      </span>
    </p>
  );
}

/** What went wrong in one agent of several: `{nodeId, message}`. */
export function AgentError({ data }: { data: unknown }) {
  const { nodeId, message } = fields(data);
  return (
    <p className="notice bad">
      <Icon name="alert" />
      <span dir="auto">
        {text(nodeId) && <b>{text(nodeId)}: </b>}
        {text(message)}
      </span>
    </p>
  );
}
