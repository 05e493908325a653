/** What an agent sent may be anything, so each field is looked at before it is shown. */

export type Fields = Record<string, unknown>;

export function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : {};
}

export function text(value: unknown): string {
  return typeof value === "string" ? value : typeof value === "number" || typeof value === "boolean" ? String(value) : "";
}

export function list(value: unknown): unknown[] {
  return Array.isArray(value) ? value : [];
}
