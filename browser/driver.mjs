// Builds pages with Vite and opens them in one Chromium: one JSON request a line on stdin, one JSON answer a line on
// stdout, in order.
import { Console } from 'node:console';
import { createInterface } from 'node:readline';

import react from '@vitejs/plugin-react';
import { chromium } from 'playwright-core';
import { build, preview } from 'vite';

// stdout belongs to the answers.
globalThis.console = new Console(process.stderr);
// As in `npm run dev`: React then says in the console what it finds wrong.
process.env.NODE_ENV = 'development';

// The bound of all tests, for what hangs (tests/support/hang.py).
const HANG = 1000 * process.env.USECHAT_HANG_SECONDS;

const FLAGS = [
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

// Playwright gives it an empty folder for the user's data.
const launching = chromium.launch({
  executablePath: '/usr/bin/chromium-headless-shell',
  headless: true,
  timeout: HANG,
  chromiumSandbox: false,
  args: FLAGS,
});

class Tab {
  problems = [];
  requests = [];

  /** In the context of another tab if there is one, whose storage it then shares. */
  async open({ beside, ...options }) {
    this.context = beside === undefined ? await (await launching).newContext(options) : tabs[beside].context;
    this.isOwner = beside === undefined;
    this.page = await this.context.newPage();
    this.page.setDefaultTimeout(HANG);
    this.page.on('console', message => {
      if (['error', 'warning'].includes(message.type())) this.problems.push(message.text());
    });
    this.page.on('pageerror', error => this.problems.push(String(error)));
    this.page.on('response', response => {
      this.requests.push([response.request().method(), response.url(), response.status()]);
    });
  }
}

const tabs = [];

const operations = {
  /** Builds the app in a folder and serves it; the proxy is Vite's own. */
  async serve({ root, port, proxy }) {
    const config = { root, configFile: false, mode: 'development', logLevel: 'error', plugins: [react()] };
    await build({ ...config, build: { minify: false, reportCompressedSize: false } });
    await preview({ ...config, preview: { port, strictPort: true, host: '127.0.0.1', proxy } });
  },
  async open({ options }) {
    const tab = new Tab();
    await tab.open(options);
    return tabs.push(tab) - 1;
  },
  /** Calls any method of Playwright's page whose arguments and value are JSON. */
  call: ({ tab, method, args }) => tabs[tab].page[method](...args),
  async download({ tab, selector, path }) {
    const { page } = tabs[tab];
    const [download] = await Promise.all([page.waitForEvent('download'), page.click(selector)]);
    await download.saveAs(path);
  },
  forget: ({ tab }) => tabs[tab].context.clearCookies(),
  look: ({ tab }) => ({ problems: tabs[tab].problems, requests: tabs[tab].requests }),
  close: ({ tab }) => (tabs[tab].isOwner ? tabs[tab].context.close() : tabs[tab].page.close()),
};

async function answer(line) {
  const request = JSON.parse(line);
  const value = await operations[request.op](request);
  // What Playwright gives for a navigation is no JSON, and nobody needs it.
  return { value: ['goto', 'reload', 'screenshot', 'waitForSelector'].includes(request.method) ? null : (value ?? null) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const reply = await answer(line).catch(error => ({ error: String(error?.message ?? error) }));
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
await (await launching).close();
process.exit();
