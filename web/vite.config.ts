import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const server = "http://127.0.0.1:8000";

export default defineConfig({
  // The page works below any path that it is served at.
  base: "./",
  plugins: [react()],
  // The hook brings a release of `ai` of its own, and what it uses of usechat is not below this folder.
  resolve: {
    dedupe: ["ai", "react"],
    // For browsers it decodes `&amp;` by means of innerHTML, which the page's policy forbids.
    alias: { "decode-named-character-reference": "/node_modules/decode-named-character-reference/index.js" },
  },
  build: {
    outDir: "../src/usechat/page",
    emptyOutDir: true,
    assetsDir: "page",
    // The Content-Security-Policy takes nothing that is inline.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 2000,
  },
  server: { fs: { allow: [".."] }, proxy: { "/api": server, "/page": server } },
});
