import { count } from "../ui/numbers.ts";

const fields = (value: unknown) => (typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {});
const number = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : undefined);

/** What the answer used and cost, if its metadata says so. */
export function Usage({ metadata }: { metadata: unknown }) {
  const told = fields(metadata);
  const usage = fields(told.usage);
  const read = number(usage.inputTokens);
  const written = number(usage.outputTokens);
  const cost = [told.costUsd, told.totalCostUsd, told.cost, usage.cost].map(number).find((value) => value !== undefined);
  const words = [
    // An agent that asked no model has used none.
    ...(read ? [`${count(read)} tokens in`] : []),
    ...(written ? [`${count(written)} out`] : []),
    ...(cost === undefined ? [] : [`$${cost.toFixed(cost < 0.1 ? 4 : 2)}`]),
  ];
  return words.length > 0 ? <span className="usage">{words.join(" · ")}</span> : null;
}
