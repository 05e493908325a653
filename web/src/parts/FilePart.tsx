import { Icon } from "../ui/icons.tsx";
import { hostOf, ownMedia, safeLink } from "../ui/links.ts";

interface Props {
  url: string;
  mediaType: string;
  filename?: string | undefined;
}

/** Shows images, sounds and videos of this server. Anything else is a link. */
export function FilePart({ url, mediaType, filename }: Props) {
  const name = filename || mediaType;
  const here = ownMedia(url);
  if (here !== undefined && mediaType.startsWith("image/")) return <img className="media" src={here} alt={filename ?? "Image"} />;
  if (here !== undefined && mediaType.startsWith("audio/")) return <audio className="media" src={here} controls aria-label={name} />;
  if (here !== undefined && mediaType.startsWith("video/")) return <video className="media" src={here} controls aria-label={name} />;
  const shown = (
    <>
      <Icon name="file" />
      <span dir="auto">{name}</span>
    </>
  );
  // Without the attribute a click would open the file as a page.
  if (here !== undefined) return <a className="source" href={here} download={filename ?? "file"}>{shown}</a>;
  const href = safeLink(url);
  if (href === undefined) return <span className="source">{shown}</span>;
  return (
    <a className="source" href={href} target="_blank" rel="noopener noreferrer nofollow">
      {shown}
      <span className="muted">{hostOf(href)}</span>
    </a>
  );
}
