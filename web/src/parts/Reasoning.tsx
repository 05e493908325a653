import { Markdown } from "../chat/Markdown.tsx";
import { Fold } from "../react.ts";
import { Icon } from "../ui/icons.tsx";

/** The agent's reasoning: open while it streams, then folded. */
export function Reasoning({ text, live }: { text: string; live: boolean }) {
  if (text === "" && !live) return null;
  return (
    <Fold
      className="reasoning"
      open={live}
      summary={
        <>
          <Icon name="brain" />
          <span className={live ? "shimmer" : ""}>{live ? "Thinking" : "Thoughts"}</span>
        </>
      }
    >
      <Markdown text={text} live={live} />
    </Fold>
  );
}
