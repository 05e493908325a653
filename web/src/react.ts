/** What `usechat react` gives to any app, this page included. */
export * from "../../src/usechat/react/parts.tsx";
export * from "../../src/usechat/react/usechat.ts";
