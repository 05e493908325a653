/** Milliseconds for people. */
export function time(ms: number | undefined): string {
  if (ms === undefined) return "–";
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}

export function count(value: number): string {
  return value.toLocaleString("en");
}
