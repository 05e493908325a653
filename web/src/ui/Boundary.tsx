import { Component, type ReactNode } from "react";

interface Props {
  /** What is shown in place of what cannot be drawn; `again` tries it once more. */
  instead: (again: () => void) => ReactNode;
  children: ReactNode;
}

/** Keeps an error while something is drawn from taking the whole page away. */
export class Boundary extends Component<Props, { hasFailed: boolean }> {
  override state = { hasFailed: false };

  static getDerivedStateFromError() {
    return { hasFailed: true };
  }

  override render() {
    if (!this.state.hasFailed) return this.props.children;
    return this.props.instead(() => this.setState({ hasFailed: false }));
  }
}
