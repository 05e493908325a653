/** A value as text: strings as they are, anything else as JSON. It can be reached by the keyboard, since it may scroll. */
export function Json({ value, label }: { value: unknown; label: string }) {
  return (
    <pre className="json" tabIndex={0} role="group" aria-label={label} dir="auto">
      {typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "")}
    </pre>
  );
}
