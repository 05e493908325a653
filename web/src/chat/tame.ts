/** Which text is drawn as Markdown, decided in one pass over it.

The parsers call themselves for each level of nesting until the stack is full. Their time grows with the square of the
marks in a paragraph, of the underlined headings and of the lines, and with the length of a paragraph for each mark whose
end may be far away. Answers stay far below these limits. Of 60 kinds of text at them, most are parsed within a second,
and the slowest (3,000 lines of `- - - - a`) took four on a busy machine.
*/
const LONGEST = 100_000;
const MOST_LINES = 3_000;
const MOST_UNDERLINES = 500;
const DEEPEST = 50;
const MOST_PAIRS = 1_000 ** 2;
const MOST_SCANNED = 10_000_000;

const LINES = /\r\n|\n|\r/;
// A paragraph ends before a blank line, and before an item of a list that is not indented.
const PARAGRAPH_END = /^(?:[ \t]*$|[-+*] \S)/;
const UNDERLINE = /^[\s>]*(?:=+|-+)\s*$/;
// What begins a quote, an item of a list or a footnote, with the space before it.
const CONTAINER = /[ \t]*(?:>|(?:[-+*]|\d{1,9}[.)])(?=[ \t]|$)|\[\^[^\]]*\]:)/y;
// Two stars count once, and a line within a word, as in snake_case, not at all.
const MARK = /([*~])\1?|`+|[[\]<]|(?<![\p{L}\p{N}])_|_(?![\p{L}\p{N}])/gu;
// What may end far away: code, comments and the like.
const SCANNED = /`+|<[!?]/g;

export function isTame(text: string): boolean {
  if (text.length > LONGEST) return false;
  const lines = text.split(LINES);
  if (lines.length > MOST_LINES) return false;
  let [pairs, scanned, underlines] = [0, 0, 0];
  let paragraph = { length: 0, marks: 0, scans: 0 };
  for (const line of lines) {
    if (depthOf(line) > DEEPEST) return false;
    if (UNDERLINE.test(line)) underlines++;
    const { length, marks, scans } = PARAGRAPH_END.test(line) ? { length: 0, marks: 0, scans: 0 } : paragraph;
    paragraph = { length: length + line.length, marks: marks + count(line, MARK), scans: scans + count(line, SCANNED) };
    pairs += paragraph.marks ** 2 - marks ** 2;
    scanned += paragraph.length * paragraph.scans - length * scans;
    if (pairs > MOST_PAIRS || scanned > MOST_SCANNED || underlines > MOST_UNDERLINES) return false;
  }
  return true;
}

const count = (line: string, what: RegExp) => line.match(what)?.length ?? 0;

/** How deep the beginning of a line may be nested: in a list each level takes two columns. */
function depthOf(line: string): number {
  let [depth, end] = [0, 0];
  for (CONTAINER.lastIndex = 0; CONTAINER.test(line); depth++) end = CONTAINER.lastIndex;
  for (const character of depth === 0 ? "" : line.slice(0, end)) depth += character === "\t" ? 2 : character === " " ? 0.5 : 0;
  return depth;
}
