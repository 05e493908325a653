/** The kinds of chunks, each with a colour of its own. */
export const KINDS = ["text", "reasoning", "tool", "data", "source", "frame", "end"] as const;
export type Kind = (typeof KINDS)[number];

export const NAMES: Record<Kind, string> = {
  text: "Text",
  reasoning: "Reasoning",
  tool: "Tools",
  data: "Data",
  source: "Sources, files",
  frame: "Frame",
  end: "Errors",
};

export function kindOf(type: string): Kind {
  if (type === "error" || type === "abort" || type === "?") return "end";
  if (type.startsWith("source-") || type === "file" || type === "reasoning-file") return "source";
  const first = type.split("-")[0];
  return KINDS.find((kind) => kind === first) ?? "frame";
}
