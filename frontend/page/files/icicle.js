// The layout of an icicle chart: boxes for the nodes of /cache/tree.

const NARROWEST = 0.0008; // of the chart's width; narrower boxes are left out, with all below them

/** Tokens of a node and everything below it. */
export function branchTokens(node) {
  return node.tokens + node.tokens_below;
}

/**
 * The answer of /cache/tree with each chain of nodes that have one child merged into one node, if all are cached or all are evicted, and have the
 * same pins and leases. Its tokens and pages are sums, and `ids` has the ids of all; hits, users and the time of the last use are the first node's.
 */
export function mergeChains({ nodes, roots, ...rest }) {
  const children = childrenOf(nodes);
  const merged = [];
  const places = nodes.map((node, index) => {
    const above = nodes[node.parent];
    const isChained = above && above.parent !== null && children[node.parent].length === 1 && !above.folded;
    if (!isChained || ["pins", "leases"].some((name) => node[name] !== above[name]) || Boolean(node.pages) !== Boolean(above.pages)) {
      return merged.push({ ...node, ids: [node.id] }) - 1;
    }
    return null;
  });
  nodes.forEach((node, index) => {
    if (places[index] !== null) {
      merged[places[index]].parent = node.parent === null ? null : places[node.parent];
      return;
    }
    places[index] = places[node.parent];
    const whole = merged[places[index]];
    whole.tokens += node.tokens;
    whole.pages += node.pages;
    whole.ids.push(node.id);
    whole.stored = addTiers(whole.stored, node.stored);
    Object.assign(whole, { tokens_below: node.tokens_below, folded: node.folded });
  });
  return { ...rest, nodes: merged, roots: roots.map((root) => ({ ...root, node: places[root.node] })) };
}

function addTiers(some, more) {
  if (!some || !more) return some ?? more;
  return { pages: some.pages + more.pages, host: some.host + more.host, disk: some.disk + more.disk };
}

/** A name for each node that lasts while it is in the tree. */
export function namesOf({ nodes, roots }) {
  const namespaces = new Map(roots.map((root) => [root.node, root.namespace]));
  const found = [];
  nodes.forEach((node, index) => {
    const inner = node.parent === null ? `root ${namespaces.get(index)}` : `${found[node.parent]} / ${node.text ?? index}`;
    found.push(node.id === null ? inner : `page ${node.id}`);
  });
  return found;
}

/** The nodes from a root to `index`, as indices. */
export function ancestry(nodes, index) {
  const found = [];
  for (let at = index; at !== null; at = nodes[at].parent) found.unshift(at);
  return found;
}

/** The tokens of the cache: those of all namespaces. */
export function heldTokens({ nodes, roots }) {
  return roots.reduce((sum, root) => sum + branchTokens(nodes[root.node]), 0);
}

/** The children of each node, as indices. */
export function childrenOf(nodes) {
  const children = nodes.map(() => []);
  nodes.forEach((node, index) => {
    if (node.parent !== null) children[node.parent].push(index);
  });
  return children;
}

/**
 * Boxes `{node, depth, x, width, folded}` from the nodes `top` down; x and width are parts of the chart's width.
 * Siblings share the width of their parent by the tokens of their branches. Nodes that the server has left out
 * are one box with their number as `folded`, and `node` is then their parent.
 */
export function boxes(nodes, top) {
  const children = childrenOf(nodes);
  const found = [];
  const waiting = [{ siblings: top, parent: null, x: 0, width: 1, depth: 0 }];
  while (waiting.length) {
    const { siblings, parent, x, width, depth } = waiting.pop();
    const shown = siblings.reduce((sum, index) => sum + branchTokens(nodes[index]), 0);
    const left = parent === null || !nodes[parent].folded ? 0 : Math.max(1, nodes[parent].tokens_below - shown);
    const all = shown + left || 1;
    let at = x;
    for (const index of siblings) {
      const own = (width * branchTokens(nodes[index])) / all;
      if (own >= NARROWEST) {
        found.push({ node: index, depth, x: at, width: own, folded: 0 });
        waiting.push({ siblings: children[index], parent: index, x: at, width: own, depth: depth + 1 });
      }
      at += own;
    }
    if (left && (width * left) / all >= NARROWEST) {
      found.push({ node: parent, depth, x: at, width: (width * left) / all, folded: nodes[parent].folded });
    }
  }
  return found;
}

/** How recently a node was used: 0 just now, 1 within a tenth of the tokens that the cache holds, …, 3 long ago. */
export function heat(node, cacheTokens) {
  if (node.idle === 0) return 0;
  const part = node.idle / Math.max(1, cacheTokens);
  return part < 0.1 ? 1 : part < 1 ? 2 : 3;
}

/** The class of a node's box; `held` are the tokens of the cache. */
export function kindOf(node, held) {
  if (node.parent === null) return "root";
  return node.pages === 0 ? evictedKind(mainTier(node)) : `heat-${heat(node, held)}`;
}

/** The classes of what is evicted to a tier; null if the tier is not known. */
export function evictedKind(tier) {
  return tier ? `evicted in-${tier}` : "evicted";
}

/** Where most pages of an evicted node are: "host", "disk" or "neither"; null if that is not known. */
export function mainTier({ stored }) {
  if (!stored) return null;
  const most = Math.max(stored.host, stored.disk, inNeither(stored));
  return stored.host === most ? "host" : stored.disk === most ? "disk" : "neither";
}

/** Where the pages of an evicted node are, in words. */
export function tiersInWords({ pages, host, disk }) {
  return `${host} in host memory, ${disk} on disk, ${inNeither({ pages, host, disk })} in neither, of ${pages} looked up`;
}

function inNeither({ pages, host, disk }) {
  return pages - host - disk;
}

/** The node that an arrow key leads to; null if there is none. */
export function neighbour(nodes, index, key) {
  const { parent } = nodes[index];
  const children = childrenOf(nodes);
  const siblings = parent === null ? [...nodes.keys()].filter((each) => nodes[each].parent === null) : children[parent];
  const row = [...siblings];
  const place = row.indexOf(index);
  if (key === "ArrowUp") return parent;
  if (key === "ArrowDown") return children[index][0] ?? null;
  if (key === "ArrowLeft") return row[place - 1] ?? null;
  if (key === "ArrowRight") return row[place + 1] ?? null;
  return null;
}

/** The requests that use a node and those that wait for it, in words. */
export function users(node) {
  return [node.requests && `${node.requests} running`, node.waiting && `${node.waiting} waiting`].filter(Boolean);
}

/** For each node the place in its label where the first word begins that tells it from its siblings with the same role. */
export function distinctStarts(nodes) {
  const starts = nodes.map(() => 0);
  for (const siblings of childrenOf(nodes)) {
    const named = siblings.filter((index) => nodes[index].label !== null).map((index) => ({ index, ...nodes[index] }));
    named.sort((first, second) => (`${first.role} ${first.label}` < `${second.role} ${second.label}` ? -1 : 1));
    named.slice(1).forEach((node, place) => {
      const before = named[place]; // in sorted order the longest common beginning is that with a neighbour
      if (node.role !== before.role) return;
      const start = node.label.slice(0, commonStart(node.label, before.label)).search(/\S*$/);
      for (const { index } of [node, before]) starts[index] = Math.max(starts[index], start);
    });
  }
  return starts;
}

/** How many characters two texts begin with that are the same. */
export function commonStart(first, second) {
  let end = 0;
  while (end < first.length && first[end] === second[end]) end += 1;
  return end;
}

/** A text in one line, with its line breaks shown. */
export function oneLine(text) {
  return text.replace(/\r?\n/g, "⏎").replace(/\s/g, " ");
}
