import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

const server = "http://127.0.0.1:8000";

export default defineConfig({
  // The page works below any path that it is served at.
  base: "./",
  plugins: [react()],
  // The hook brings a release of its own.
  resolve: { dedupe: ["ai"] },
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
  server: { proxy: { "/api": server, "/page": server } },
});
