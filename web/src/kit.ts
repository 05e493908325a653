/** What `usechat react` gives to any app, this page included. */
export * from "../../src/usechat/kit/parts.tsx";
export * from "../../src/usechat/kit/usechat.ts";
