import { Component, type ReactNode } from "react";

interface Props {
  /** What to show in place of content that cannot be drawn. `again` tries it once more. */
  instead: (again: () => void) => ReactNode;
  children: ReactNode;
}

/** Keeps an error in one component from removing the whole page. */
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
