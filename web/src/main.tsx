import "./strict.ts";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/message.css";
import "./styles/parts.css";
import "./styles/inspector.css";

import { createRoot } from "react-dom/client";

import { App } from "./App.tsx";
import { loadSettings } from "./settings.ts";

const place = document.getElementById("root");
if (place === null) throw new Error("The page has no root.");
const root = createRoot(place);

loadSettings().then(
  (settings) => root.render(<App settings={settings} />),
  () => root.render(<p role="alert">The server cannot be reached. Load the page again.</p>),
);
