// Markdown as elements. What a model writes becomes text nodes alone: no part of it is ever read as HTML.

const FENCE = /^\s{0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^(#{1,6})\s+(.*?)\s*#*$/;
const RULE = /^\s{0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const QUOTE = /^\s{0,3}>\s?(.*)$/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
// Quotes and lists within each other, at most: deeper ones are text.
const DEEPEST = 8;

// Puts `text` into `place`, in place of what is there.
export function render(text, place) {
  place.replaceChildren(...blocks(text.split('\n'), 0));
}

function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
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
      made.push(element(`h${heading[1].length}`, ...inline(heading[2])));
      at += 1;
    } else if (RULE.test(line)) {
      made.push(element('hr'));
      at += 1;
    } else if (quote && depth < DEEPEST) {
      const end = run(lines, at, (one) => QUOTE.test(one));
      const inside = lines.slice(at, end).map((one) => QUOTE.exec(one)[1]);
      made.push(element('blockquote', ...blocks(inside, depth + 1)));
      at = end;
    } else if (item && depth < DEEPEST) {
      const end = listEnd(lines, at);
      made.push(list(lines.slice(at, end), depth));
      at = end;
    } else if (line.includes('|') && DIVIDER.test(lines[at + 1] ?? '')) {
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
    // One of the other kind begins another list.
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
    const inside = blocks([item[3], ...rest], depth + 1);
    // A tight item is no paragraph.
    if (inside[0]?.tagName === 'P') inside.splice(0, 1, ...inside[0].childNodes);
    made.append(element('li', ...inside));
    at = end;
  }
  return made;
}

function cells(line) {
  return line.trim().replace(/^\|/, '').replace(/\|$/, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll('\\|', '|'));
}

function table(header, lines) {
  const row = (name, line) => element('tr', ...cells(line).map((cell) => element(name, ...inline(cell))));
  return element('table', element('thead', row('th', header)), element('tbody', ...lines.map((line) => row('td', line))));
}

function paragraph(lines) {
  const made = element('p');
  lines.forEach((line, index) => {
    if (index) made.append(/( {2}|\\)$/.test(lines[index - 1]) ? element('br') : '\n');
    made.append(...inline(line.trim().replace(/\\$/, '')));
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

const INLINE = /\\([\\`*_{}[\]()#+\-.!|~>])|(`+)([^`]|[^`].*?[^`])\2(?!`)|\*\*(?=\S)(.+?)\*\*|(?<![\w_])__(?=\S)(.+?)__(?!\w)|\*(?=[^\s*])(.+?)\*|(?<![\w_])_(?=[^\s_])(.+?)_(?!\w)|~~(?=\S)(.+?)~~|\[([^\]]+)\]\(([^()\s]+)\)|(https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"])/;

// Texts longer than this in one line are not looked through.
const LONGEST = 20_000;

function inline(text, depth = 0) {
  const made = [];
  let rest = text;
  while (rest && depth < DEEPEST && rest.length < LONGEST) {
    const found = INLINE.exec(rest);
    if (!found) break;
    if (found.index) made.push(rest.slice(0, found.index));
    const [all, escaped, , verbatim, strong, strongToo, emphasis, emphasisToo, struck, label, target, address] = found;
    const within = (name, content) => element(name, ...inline(content, depth + 1));
    if (escaped !== undefined) made.push(escaped);
    else if (verbatim !== undefined) made.push(element('code', verbatim));
    else if (strong ?? strongToo) made.push(within('strong', strong ?? strongToo));
    else if (emphasis ?? emphasisToo) made.push(within('em', emphasis ?? emphasisToo));
    else if (struck) made.push(within('del', struck));
    else made.push(link(address ?? target, address ? [address] : inline(label, depth + 1), all));
    rest = rest.slice(found.index + all.length);
  }
  if (rest) made.push(rest);
  return made;
}

// A link, of the kinds that lead to a page or a mail; other kinds stay the text that they are.
function link(target, content, text) {
  if (!/^(https?:\/\/|mailto:)/i.test(target)) return text;
  const made = element('a', ...content);
  made.href = target;
  made.target = '_blank';
  made.rel = 'noopener noreferrer nofollow';
  return made;
}
