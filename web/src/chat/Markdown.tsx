import { type ComponentProps, memo, type ReactNode } from "react";
import { Streamdown } from "streamdown";

import { CopyButton } from "../ui/CopyButton.tsx";
import { hostOf, safeLink } from "../ui/links.ts";
import { useImage } from "./images.ts";
import { isTame } from "./tame.ts";

interface Node {
  type: string;
  value?: string;
  children?: Node[];
}

function textOf(node: Node | undefined): string {
  return node?.value ?? node?.children?.map(textOf).join("") ?? "";
}

type Of<Tag extends keyof React.JSX.IntrinsicElements> = ComponentProps<Tag> & { node?: unknown };

/** An element without the library's classes. */
function plain<Tag extends keyof React.JSX.IntrinsicElements>(tag: Tag) {
  const Element = tag as React.ElementType;
  return ({ children, dir, start }: { children?: ReactNode; dir?: string; start?: number }) => (
    <Element dir={dir} start={start}>
      {children}
    </Element>
  );
}

function Link({ href, children }: Of<"a">) {
  const url = href === undefined ? undefined : safeLink(href);
  if (url === undefined) return <>{children}</>;
  return (
    <a href={url} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function Image({ src, alt }: Of<"img">) {
  const url = useImage(src ?? "");
  if (src === undefined) return <>{alt}</>;
  if (url !== undefined) return <img src={url} alt={alt ?? ""} />;
  // Another server would learn that the user looks at it, and get whatever the agent put into the address.
  return <Link href={src}>{`${alt || "Image"} (${hostOf(src) || src})`}</Link>;
}

function Pre({ node }: Of<"pre">) {
  const text = textOf(node as Node).replace(/\n$/, "");
  const code = (node as { children?: { properties?: { className?: string[] } }[] }).children?.[0];
  const language = code?.properties?.className?.find((name) => name.startsWith("language-"))?.slice(9) ?? "";
  return (
    <figure className="code">
      <figcaption>
        <span>{language}</span>
        <CopyButton text={() => text} label="Code to the clipboard" />
      </figcaption>
      <pre tabIndex={0} aria-label={language ? `Code in ${language}` : "Code"} role="group" dir="ltr">
        <code>{text}</code>
      </pre>
    </figure>
  );
}

function Table({ children }: Of<"table">) {
  return (
    <div className="table" tabIndex={0} role="group" aria-label="Table">
      <table>{children}</table>
    </div>
  );
}

const TAGS = ["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "strong", "em", "del"] as const;
const CELLS = ["thead", "tbody", "tr", "th", "td", "sup", "sub"] as const;

const COMPONENTS = {
  ...Object.fromEntries([...TAGS, ...CELLS].map((tag) => [tag, plain(tag)])),
  a: Link,
  img: Image,
  pre: Pre,
  code: plain("code"),
  inlineCode: plain("code"),
  table: Table,
};

// Made once: a block is parsed again whenever one of these changes its identity.
const NO_PLUGINS: [] = [];
const UNASKED = { enabled: false };
// Links and images are checked when they are drawn.
const asItIs = (url: string) => url;

/** Text as Markdown, while it still grows. HTML, and Markdown that would freeze the page, are shown as plain text. */
export const Markdown = memo(function Markdown({ text, live }: { text: string; live: boolean }) {
  if (!isTame(text)) return <p className="plain" dir="auto">{text}</p>;
  return (
    <Streamdown
      className="markdown"
      mode="streaming"
      dir="auto"
      parseIncompleteMarkdown={live}
      controls={false}
      rehypePlugins={NO_PLUGINS}
      urlTransform={asItIs}
      linkSafety={UNASKED}
      components={COMPONENTS}
    >
      {text}
    </Streamdown>
  );
});
