import "./strict.ts";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/message.css";
import "./styles/parts.css";
import "./styles/inspector.css";

import { createRoot } from "react-dom/client";

import { App } from "./App.tsx";
import { messageOf } from "./chat/errors.ts";
import { PART_STYLES } from "./react.ts";
import { loadSettings } from "./settings.ts";

// As a sheet of its own, since the page's policy takes no element with a style.
const partStyles = new CSSStyleSheet();
partStyles.replaceSync(PART_STYLES);
document.adoptedStyleSheets = [partStyles];

const place = document.getElementById("root");
if (place === null) throw new Error("The page has no root.");
const root = createRoot(place);

loadSettings().then(
  (settings) => root.render(<App settings={settings} />),
  (error: unknown) => root.render(
      <main className="signin">
        <p role="alert" className="notice bad">{messageOf(error)} Load the page again.</p>
      </main>,
    ),
);
