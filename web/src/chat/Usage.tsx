import { count } from "../ui/numbers.ts";

const fields = (value: unknown) => (typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {});
const number = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : undefined);

/** Tokens and cost of the answer, if its metadata has them. */
export function Usage({ metadata }: { metadata: unknown }) {
  const known = fields(metadata);
  const usage = fields(known.usage);
  const read = number(usage.inputTokens);
  const written = number(usage.outputTokens);
  const cost = [known.costUsd, known.totalCostUsd, known.cost, usage.cost].map(number).find((value) => value !== undefined);
  const words = [
    // An agent without a model uses no tokens.
    ...(read ? [`${count(read)} tokens in`] : []),
    ...(written ? [`${count(written)} out`] : []),
    ...(cost === undefined ? [] : [`$${cost.toFixed(cost < 0.1 ? 4 : 2)}`]),
  ];
  return words.length > 0 ? <span className="usage">{words.join(" · ")}</span> : null;
}
