import { createElement, useEffect } from 'react';
import { create } from 'react-test-renderer';

/** Renders a component that calls the hook, tells what it gave each time, and returns how to take it away. */
export function render(useHook, argument, told) {
  const root = create(
    createElement(() => {
      const given = useHook(argument);
      useEffect(() => told(given));
      return null;
    }),
  );
  return () => root.unmount();
}
