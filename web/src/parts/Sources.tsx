import type { SourceDocumentUIPart, SourceUrlUIPart } from "ai";

import { Icon } from "../ui/icons.tsx";
import { hostOf, safeLink } from "../ui/links.ts";

export type Source = SourceUrlUIPart | SourceDocumentUIPart;

export function Sources({ sources }: { sources: Source[] }) {
  return (
    <div className="sources" role="group" aria-label="Sources">
      <p className="label">Sources</p>
      <ol>
        {sources.map((source, index) => (
          <li key={index}>{source.type === "source-url" ? <Page source={source} /> : <Document source={source} />}</li>
        ))}
      </ol>
    </div>
  );
}

function Page({ source }: { source: SourceUrlUIPart }) {
  const href = safeLink(source.url);
  const shown = (
    <>
      <Icon name="globe" />
      <span dir="auto">{source.title || source.url}</span>
      {href && <span className="muted">{hostOf(href)}</span>}
    </>
  );
  if (href === undefined) return <span className="source">{shown}</span>;
  return (
    <a className="source" href={href} target="_blank" rel="noopener noreferrer nofollow">
      {shown}
    </a>
  );
}

function Document({ source }: { source: SourceDocumentUIPart }) {
  return (
    <span className="source">
      <Icon name="file" />
      <span dir="auto">{source.title}</span>
      <span className="muted">{source.filename ?? source.mediaType}</span>
    </span>
  );
}
