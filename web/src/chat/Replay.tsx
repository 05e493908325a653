import { useEffect, useMemo, useState } from "react";

import { Connection } from "../connection.ts";
import { Player, type Speed } from "../recording/player.ts";
import type { Recording } from "../recording/file.ts";
import type { Agent } from "../settings.ts";
import { Conversation } from "./Conversation.tsx";

interface Props {
  recording: Recording;
  agent: Agent;
  inspecting: boolean;
  closeInspector: () => void;
  close: () => void;
}

/** Plays a recorded turn at its own speed, faster, or chunk by chunk. */
export function Replay({ recording, agent, inspecting, closeInspector, close }: Props) {
  const player = useMemo(() => new Player(recording), [recording]);
  const [speed, setSpeed] = useState<Speed>(1);
  const connection = useMemo(() => {
    const played = { ...agent, keeps: false, lists: false, prompts: [], socket: null };
    return new Connection(played, player.fetch);
  }, [agent, player]);
  useEffect(() => () => connection.forget("replay"), [connection]);
  const choose = (chosen: 1 | 4) => {
    setSpeed(chosen);
    player.speed = chosen;
  };
  const step = () => {
    setSpeed("step");
    player.step();
  };
  return (
    <>
      <div className="replay" role="group" aria-label="Replay">
        <span className="muted">A recording</span>
        {([1, 4] as const).map((times) => (
          <button key={times} type="button" className="button small" aria-pressed={speed === times} onClick={() => choose(times)}>
            {times}×
          </button>
        ))}
        <button type="button" className="button small" aria-pressed={speed === "step"} onClick={step}>
          Step
        </button>
        <button type="button" className="button small" onClick={close}>
          End the replay
        </button>
      </div>
      <Conversation
        connection={connection}
        id="replay"
        loaded={recording.continues === null ? [] : [recording.continues]}
        played={recording}
        inspecting={inspecting}
        closeInspector={closeInspector}
        onTurn={() => undefined}
      />
    </>
  );
}
