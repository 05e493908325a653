import { readFileSync } from 'node:fs';

const { dependencies } = JSON.parse(readFileSync(new URL('package.json', import.meta.url), 'utf8'));

export const versions = Object.keys(dependencies)
  .filter(alias => alias.startsWith('ai-'))
  .map(alias => alias.slice('ai-'.length))
  .sort((a, b) => a.localeCompare(b, 'en', { numeric: true }));

export function load(version) {
  if (!versions.includes(version)) throw new Error(`no client ${JSON.stringify(version)} in package.json`);
  return import(`ai-${version}`);
}

/** A release of @ai-sdk/react. */
export function loadHook(version) {
  if (!(`react-${version}` in dependencies)) throw new Error(`no hook ${JSON.stringify(version)} in package.json`);
  return import(`react-${version}`);
}
