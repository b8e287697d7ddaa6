// The messages of a chat as a tree. To edit a message or to ask for another reply begins a branch beside the first one.

const ROOT = 0; // the id of a node without a message, above the first messages

/** Nodes are `{id, parent, chosen, message, …details}`; `chosen` is the child that was shown last. */
export class MessageTree {
  #nodes = new Map([[ROOT, { id: ROOT, parent: null, chosen: null }]]);
  #leaf = ROOT;

  /** The id of the last message that is shown; 0 for none. */
  get leaf() {
    return this.#leaf;
  }

  get isEmpty() {
    return this.#nodes.size === 1;
  }

  get(id) {
    return this.#nodes.get(id);
  }

  /** The nodes from the first message to `id`, by default the last that is shown. */
  path(id = this.#leaf) {
    const found = [];
    for (let node = this.get(id); node.id !== ROOT; node = this.get(node.parent)) found.unshift(node);
    return found;
  }

  /** The messages that follow the same message, in the order of their creation. */
  siblings(id) {
    return this.#children(this.get(id).parent);
  }

  #children(id) {
    return [...this.#nodes.values()].filter((node) => node.parent === id);
  }

  /** Adds a message below `parent`. It becomes the last that is shown if `parent` was. */
  add(parent, message, details = {}) {
    const id = Math.max(...this.#nodes.keys()) + 1;
    const node = { ...details, id, parent, chosen: null, message };
    this.#nodes.set(id, node);
    if (this.#leaf === parent) this.goTo(id);
    return node;
  }

  /** Ends what is shown at `id`. */
  goTo(id) {
    this.#leaf = id;
    for (let node = this.get(id); node.id !== ROOT; node = this.get(node.parent)) this.get(node.parent).chosen = node.id;
  }

  /** Shows the branch through `id`, to the end that was shown last. */
  show(id) {
    let last = id;
    for (let node = this.get(id); node; node = this.get(node.chosen)) last = node.id;
    this.goTo(last);
  }

  /** Removes a message that none follows. */
  remove(id) {
    const { parent } = this.get(id);
    if (this.#children(id).length) throw new Error(`messages follow message ${id}`);
    this.#nodes.delete(id);
    if (this.get(parent).chosen === id) this.get(parent).chosen = this.#children(parent).at(-1)?.id ?? null;
    if (this.#leaf === id) this.#leaf = parent;
  }

  /** The tree as `readTree` takes it. */
  toJSON() {
    return { leaf: this.#leaf, nodes: [...this.#nodes.values()].filter(({ id }) => id !== ROOT) };
  }
}

/** The tree that `toJSON` wrote. Throws an Error that names the first mistake. */
export function readTree({ leaf, nodes }) {
  const tree = new MessageTree();
  const ids = new Map([[ROOT, ROOT]]); // by the ids in `nodes`
  if (!Array.isArray(nodes)) throw new Error("tree.nodes must be a list");
  nodes.forEach(({ id, parent, chosen, message, ...details }, index) => {
    if (!Number.isInteger(id) || ids.has(id)) throw new Error(`tree.nodes[${index}].id is ${id}, but must be a new whole number`);
    if (!ids.has(parent)) throw new Error(`tree.nodes[${index}].parent is ${parent}, but must be the id of an earlier message, or 0`);
    ids.set(id, tree.add(ids.get(parent), message, details).id);
  });
  if (!ids.has(leaf)) throw new Error(`tree.leaf is ${leaf}, but must be the id of a message`);
  for (const { id, chosen } of nodes) if (ids.get(chosen)) tree.get(ids.get(id)).chosen = ids.get(chosen);
  tree.goTo(ids.get(leaf));
  return tree;
}
