// The layout of an icicle chart: boxes for the nodes of /cache/tree.

const NARROWEST = 0.0008; // of the chart's width; narrower boxes are left out, with all below them

/** Tokens of a node and everything below it. */
export function branchTokens(node) {
  return node.tokens + node.tokens_below;
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

/** A text in one line, with its line breaks shown. */
export function oneLine(text) {
  return text.replace(/\r?\n/g, "⏎").replace(/\s/g, " ");
}
