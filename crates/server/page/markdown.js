// Renders Markdown as elements. The model's output only becomes text nodes: no part of it is parsed as HTML.
//
// The time is linear in the length of any text: no expression here can match the same characters in two ways, and each
// search further on in a line is done once.

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(\S.*)?$/s;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(\S.*)?$/s;
const QUOTE = /^\s{0,3}>\s?(.*)$/s;
// Quotes and lists within each other, at most: deeper ones are text.
const DEEPEST = 8;

// Puts `text` into `place`, in place of what is there.
export function render(text, place) {
  place.replaceChildren();
  fill(place, blocks(text.split('\n'), 0));
}

function element(name, ...children) {
  return fill(document.createElement(name), children);
}

// Puts `children` at the end of `place`, one by one: a call has room for some ten thousand arguments.
function fill(place, children) {
  for (const child of children) place.append(child);
  return place;
}

function blocks(lines, depth) {
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const [fence, heading, quote, item] = [FENCE, HEADING, QUOTE, ITEM].map((form) => form.exec(line));
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      const end = closing(lines, at + 1, fence[1]);
      made.push(code(lines.slice(at + 1, end).join('\n'), fence[2]));
      at = end + 1;
    } else if (heading) {
      made.push(fill(element(`h${heading[1].length}`), inline(title(heading[2] ?? ''))));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(element('hr'));
      at += 1;
    } else if (quote && depth < DEEPEST) {
      const end = run(lines, at, (one) => QUOTE.test(one));
      const inside = lines.slice(at, end).map((one) => QUOTE.exec(one)[1]);
      made.push(fill(element('blockquote'), blocks(inside, depth + 1)));
      at = end;
    } else if (item && depth < DEEPEST) {
      const end = listEnd(lines, at);
      made.push(list(lines.slice(at, end), depth));
      at = end;
    } else if (line.includes('|') && isDivider(lines[at + 1] ?? '')) {
      const end = run(lines, at + 2, (one) => one.includes('|'));
      made.push(table(line, lines.slice(at + 2, end)));
      at = end;
    } else {
      const end = run(lines, at + 1, (one) => one.trim() && ![FENCE, HEADING, QUOTE, ITEM, RULE].some((form) => form.test(one)));
      made.push(paragraph(lines.slice(at, end)));
      at = end;
    }
  }
  return made;
}

// The text of a heading, without the signs that may close it after a space.
function title(text) {
  const whole = text.trimEnd();
  let end = whole.length;
  while (whole[end - 1] === '#') end -= 1;
  return /\S/.test(whole[end - 1] ?? ' ') ? whole : whole.slice(0, end).trimEnd();
}

// Whether a line divides the head of a table from its rows.
function isDivider(line) {
  return cells(line).every((cell) => /^:?-+:?$/.test(cell));
}

// The first line from `at` on that `belongs` does not hold for.
function run(lines, at, belongs) {
  while (at < lines.length && belongs(lines[at])) at += 1;
  return at;
}

// The line that closes a fence; the end of a text that is still being written.
function closing(lines, at, fence) {
  return run(lines, at, (one) => !(one.trim().startsWith(fence) && !one.trim().slice(fence.length).replaceAll(fence[0], '')));
}

function listEnd(lines, at) {
  const [, { length: indent }, first] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first);
  const goesOn = (one) => {
    const item = ITEM.exec(one);
    // An item of the other kind starts another list.
    return item && item[1].length <= indent ? /\d/.test(item[2]) === isOrdered : one.search(/\S/) > indent;
  };
  let end = at + 1;
  while (end < lines.length) {
    const line = lines[end];
    const next = lines[end + 1] ?? '';
    if (line.trim() ? !goesOn(line) : !(next.trim() && goesOn(next))) break;
    end += 1;
  }
  return end;
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const isOrdered = /\d/.test(first[2]);
  const made = element(isOrdered ? 'ol' : 'ul');
  if (isOrdered && Number.parseInt(first[2], 10) !== 1) made.start = Number.parseInt(first[2], 10);
  let at = 0;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    const end = run(lines, at + 1, (one) => {
      const other = ITEM.exec(one);
      return !other || other[1].length > first[1].length;
    });
    const width = first[1].length + 2;
    const rest = lines.slice(at + 1, end).map((one) => one.slice(Math.min(width, Math.max(one.search(/\S/), 0))));
    const inside = blocks([item[3] ?? ''].concat(rest), depth + 1);
    // The text of a tight item is not a paragraph.
    const tight = inside[0]?.tagName === 'P' ? [...inside.shift().childNodes] : [];
    made.append(fill(fill(element('li'), tight), inside));
    at = end;
  }
  return made;
}

function cells(line) {
  return line.trim().replace(/^\|/, '').replace(/\|$/, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

function table(header, lines) {
  const row = (name, line) => fill(element('tr'), cells(line).map((cell) => fill(element(name), inline(cell))));
  const body = fill(element('tbody'), lines.map((line) => row('td', line)));
  return element('table', element('thead', row('th', header)), body);
}

function paragraph(lines) {
  const made = element('p');
  lines.forEach((line, index) => {
    if (index) made.append(/( {2}|\\)$/.test(lines[index - 1]) ? element('br') : '\n');
    fill(made, inline(line.trim().replace(/\\$/, '')));
  });
  return made;
}

function code(text, language) {
  const inside = element('code', text);
  if (language) inside.dataset.language = language;
  const copy = element('button', 'Copy');
  copy.type = 'button';
  copy.setAttribute('aria-label', 'Copy the code');
  copy.addEventListener('click', async () => {
    await navigator.clipboard.writeText(text);
    copy.textContent = 'Copied';
    setTimeout(() => { copy.textContent = 'Copy'; }, 1500);
  });
  const made = element('div', element('pre', inside), copy);
  made.className = 'code';
  return made;
}

// Where something other than text may begin.
const SPECIAL = /[\\`*_~[]|https?:\/\//g;
const ESCAPED = /[\\`*_{}[\]()#+\-.!|~>]/;
const TARGET = /\(([^()\s]+)\)/y;
const ADDRESS = /https?:\/\/[^\s<>()]*/y;
// What no address ends with.
const POINTS = '.,;:!?\'"';
// What is emphasized: its sign, its element, and whether the sign has to be outside of words.
const MARKS = [['**', 'strong', false], ['__', 'strong', true], ['*', 'em', false], ['_', 'em', true], ['~~', 'del', false]];

function inline(text, depth = 0) {
  if (depth >= DEEPEST) return [text];
  const made = [];
  const line = new Line(text, depth);
  const special = new RegExp(SPECIAL);
  let done = 0;
  for (let found = special.exec(text); found; found = special.exec(text)) {
    const { index } = found;
    const read = line.read(index);
    // A run of backticks without a closing run is text.
    special.lastIndex = read?.end ?? (text[index] === '`' ? runEnd(text, index) : index + 1);
    if (read) {
      if (index > done) made.push(text.slice(done, index));
      made.push(read.content);
      done = read.end;
    }
  }
  if (done < text.length) made.push(text.slice(done));
  return made;
}

// Where a run of one letter ends.
function runEnd(text, at) {
  const letter = text[at];
  while (text[at] === letter) at += 1;
  return at;
}

// Reads a line from its beginning to its end, and remembers what it found ahead.
class Line {
  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
    this.ahead = new Map();
  }

  // Returns the element or text that begins at `at`, and where it ends, or undefined if the character is plain text.
  read(at) {
    switch (this.text[at]) {
      case '\\': return ESCAPED.test(this.text[at + 1] ?? '') ? { content: this.text[at + 1], end: at + 2 } : undefined;
      case '`': return this.verbatim(at);
      case '[': return this.link(at);
      case 'h': return this.address(at);
      default: return this.emphasis(at);
    }
  }

  // Returns the first position from `from` on that `find` returns, or -1. Calls for the same `what` must not go backwards.
  first(what, from, find) {
    const known = this.ahead.get(what);
    if (known === -1 || known >= from) return known;
    const place = find(from);
    this.ahead.set(what, place);
    return place;
  }

  verbatim(at) {
    const start = runEnd(this.text, at);
    const runs = this.runs.get(start - at) ?? [];
    while (runs.at(-1) < start) runs.pop();
    if (!runs.length) return undefined;
    return { content: element('code', this.text.slice(start, runs.at(-1))), end: runs.at(-1) + start - at };
  }

  emphasis(at) {
    const { text } = this;
    for (const [mark, name, isOutside] of MARKS) {
      const start = at + mark.length;
      const opens = text.startsWith(mark, at) && /\S/.test(text[start] ?? ' ') && (mark.length > 1 || text[start] !== mark);
      if (!opens || (isOutside && /\w/.test(text[at - 1] ?? ' '))) continue;
      const close = this.first(mark, start + 1, (from) => {
        let place = text.indexOf(mark, from);
        while (place >= 0 && isOutside && /\w/.test(text[place + mark.length] ?? ' ')) place = text.indexOf(mark, place + 1);
        return place;
      });
      if (close >= 0) {
        const content = fill(element(name), inline(text.slice(start, close), this.depth + 1));
        return { content, end: close + mark.length };
      }
    }
    return undefined;
  }

  link(at) {
    const { text } = this;
    const middle = this.first(']', at + 1, (from) => text.indexOf(']', from));
    if (middle <= at + 1) return undefined;
    // Many opening brackets may share this closing bracket.
    if (this.middle !== middle) {
      TARGET.lastIndex = middle + 1;
      [this.middle, this.target] = [middle, TARGET.exec(text)?.[1]];
    }
    if (this.target === undefined) return undefined;
    const end = middle + this.target.length + 3;
    return { content: link(this.target, inline(text.slice(at + 1, middle), this.depth + 1), text.slice(at, end)), end };
  }

  address(at) {
    ADDRESS.lastIndex = at;
    const [whole] = ADDRESS.exec(this.text);
    let { length } = whole;
    while (POINTS.includes(whole[length - 1])) length -= 1;
    const address = whole.slice(0, length);
    // A scheme alone, or followed only by punctuation, is not an address.
    return /:\/\/./.test(address) ? { content: link(address, [address], address), end: at + length } : undefined;
  }

  // Returns the positions of runs of backticks by their length, in reverse order.
  get runs() {
    if (!this.backticks) {
      this.backticks = new Map();
      for (const { 0: run, index } of [...this.text.matchAll(/`+/g)].reverse()) {
        if (!this.backticks.has(run.length)) this.backticks.set(run.length, []);
        this.backticks.get(run.length).push(index);
      }
    }
    return this.backticks;
  }
}

// Returns a link to a web page or a mail address. Other kinds of links stay text.
function link(target, content, text) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return text;
  const made = element('a', ...content);
  made.href = target;
  made.target = '_blank';
  made.rel = 'noopener noreferrer nofollow';
  return made;
}
