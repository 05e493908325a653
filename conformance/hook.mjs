import { StrictMode, createElement, useEffect } from 'react';
import { create } from 'react-test-renderer';

/** Renders a component that calls the hook, tells what it gave each time, and returns how to take it away. */
export function render(useHook, argument, told, strict) {
  const component = createElement(() => {
    const given = useHook(argument);
    useEffect(() => told(given));
    return null;
  });
  const root = create(strict ? createElement(StrictMode, null, component) : component);
  return () => root.unmount();
}
