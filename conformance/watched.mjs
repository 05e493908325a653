/** Wakes those who wait for a condition when something changed. */
export class Watched {
  #waiting = [];

  async when(condition) {
    while (!condition()) await new Promise(resolve => this.#waiting.push(resolve));
  }

  wake() {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}

/** The state of @ai-sdk/react, as in chat.mjs, which can be watched. */
export class WatchedState extends Watched {
  #messages;
  #status = 'ready';
  error = undefined;

  constructor(messages) {
    super();
    this.#messages = messages;
  }

  get messages() {
    return this.#messages;
  }

  set messages(messages) {
    this.#messages = messages;
    this.wake();
  }

  get status() {
    return this.#status;
  }

  set status(status) {
    this.#status = status;
    this.wake();
  }

  pushMessage = message => {
    this.messages = this.messages.concat(message);
  };

  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };

  replaceMessage = (index, message) => {
    this.messages = this.messages.with(index, this.snapshot(message));
  };

  snapshot = value => structuredClone(value);
}
