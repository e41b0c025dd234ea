// Finds texts for which `render` takes more than linear time. A text of long lines is compared with one of the same length
// whose lines are a sixteenth as long: quadratic time is sixteen times as long. A text of many lines is compared with its first
// eighth: linear time is eight times as long, quadratic time 64 times. Returns the texts that take more than six times as
// long, or more than 24 times.
async ({ module, letters }) => {
  const { render } = await import(module);
  // The library of formulas is loaded with the first one.
  render('$a$', document.createElement('div'));
  while (!globalThis.temml) await new Promise((resolve) => { setTimeout(resolve, 20); });
  const time = (text) => {
    const [place, start] = [document.createElement('div'), performance.now()];
    render(text, place);
    return performance.now() - start;
  };
  const repeat = (unit, length) => unit.repeat(Math.ceil(length / unit.length)).slice(0, length);
  const cut = (unit, length) => repeat(`${repeat(unit, length)}\n\n`, letters);
  const units = ['*', '*a ', '**a ', '_a', '__a ', '~~a ', '`', '` ', '`a``b```c', '[', '[a](', '[a](b ', '](', '\\', '<', 'http://',
    'http://.', '# ', 'a #', '|', '|-', '- ', '> ', ' ', '* * * x', '> - ', '1. ',
    '$', '$a ', '$a$ ', '$$', '$$a ', '\\(', '\\(a\\) ', '\\[', '- [ ] '];
  const blocks = {
    items: '- a\n', 'items and blank lines': '- a\n\n', 'two kinds of lists': '- a\n1. b\n', quotes: '> a\n', fences: '```\n',
    tables: 'a|b\n-|-\nc|d\n', paragraphs: 'a\n\n', lines: 'a\n', headings: '# a #\n', 'open formulas': '$$a\n', formulas: '$$\na\n$$\n', 'open brackets': '\\[a\n',
    'nested lists': Array.from({ length: 40 }, (_, depth) => `${' '.repeat(depth)}- a\n`).join(''),
  };
  const slow = {};
  // Machines do other things, too: the best of three tries counts.
  const check = (name, most, short, long) => {
    let found = Infinity;
    for (let attempt = 0; attempt < 3 && found > most; attempt += 1) found = Math.min(found, time(long) / Math.max(time(short), 5));
    if (found > most) slow[name] = found;
  };
  for (const unit of units) check(`lines of ${unit}`, 6, cut(unit, 1000), cut(unit, 16_000));
  for (const [name, unit] of Object.entries(blocks)) check(name, 24, repeat(unit, letters / 8), repeat(unit, letters));
  const all = (length) => units.map((unit) => repeat(unit, length / units.length)).join('\n\n');
  check('all of them', 24, all(125_000), all(1_000_000));
  return slow;
}
