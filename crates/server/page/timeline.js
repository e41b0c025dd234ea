// A zoomable picture of a prompt's timeline: one lane per processor, with its tasks in the colours of their chunks and
// its waiting time.

import { timeline } from './api.js';
import { t } from './text.js';

const NAMESPACE = 'http://www.w3.org/2000/svg';
// The colours of Okabe and Ito, which can be distinguished with any kind of colour blindness.
const COLOURS = ['#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#56b4e9'];
const [LANE, GAP, TOP, AXIS] = [44, 26, 24, 26];
// Pixels: the least width of the picture, and between two ticks of the axis.
const [LEAST, TICK] = [240, 90];
const CLOSEST = 1e-5;

const dialog = document.getElementById('timeline');
const picture = document.getElementById('timeline-picture');
const text = document.getElementById('timeline-text');
let shown = null;

// Shows the timeline of a response's prompt.
export async function show(id) {
  shown = null;
  picture.replaceChildren();
  text.textContent = t('loading');
  dialog.showModal();
  try {
    const record = await timeline(id);
    if (!record) {
      text.textContent = t('timelineGone');
      return;
    }
    text.textContent = summary(record);
    shown = { record, from: 0, to: record.seconds };
    draw();
  } catch (error) {
    text.textContent = error.message;
  }
}

function summary({ seconds, tokens, chunks, processors }) {
  const busy = processors.map(({ name, busy_seconds: busy }) => t('timelineBusy', { name, percent: Math.round((100 * busy) / seconds) }));
  const work = t('timelineWork', { tokens: t('tokens', { n: tokens }), chunks: t('chunks', { n: chunks }), time: time(seconds) });
  return `${work}; ${busy.join(', ')}. ${t('timelineKeys')}`;
}

function time(seconds) {
  return seconds < 1 ? `${(1e3 * seconds).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
}

function node(name, attributes, content) {
  const made = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (content !== undefined) made.textContent = content;
  return made;
}

function draw() {
  const { record, from, to } = shown;
  const { processors, tasks } = record;
  // One unit is one pixel, so that letters have their size on a narrow screen, too.
  const width = Math.max(picture.clientWidth, LEAST);
  const height = TOP + processors.length * (LANE + GAP) + AXIS;
  const svg = node('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', tabindex: 0, 'aria-label': text.textContent });
  const across = (seconds) => (width * (seconds - from)) / (to - from);
  processors.forEach(({ name }, lane) => {
    const y = TOP + lane * (LANE + GAP);
    svg.append(node('text', { x: 4, y: y - 6 }, name));
    svg.append(node('rect', { class: 'bubble', x: 0, y, width, height: LANE }));
  });
  for (const task of tasks) {
    if (task.end < from || task.start > to) continue;
    const [x, end] = [Math.max(across(task.start), 0), Math.min(across(task.end), width)];
    const y = TOP + task.processor * (LANE + GAP);
    const fill = COLOURS[task.chunk % COLOURS.length];
    const bar = node('rect', { class: 'task', x, y, width: Math.max(end - x, 0.3), height: LANE, fill });
    bar.append(node('title', {}, t('timelineTask', { name: task.name, n: task.chunk + 1, time: time(task.end - task.start), start: time(task.start) })));
    svg.append(bar);
    if (end - x > 7 * task.name.length) {
      svg.append(node('text', { x: x + 4, y: y + LANE / 2 + 4, style: 'fill:#fff;pointer-events:none' }, task.name));
    }
  }
  const step = nice((TICK * (to - from)) / width);
  for (let tick = Math.ceil(from / step) * step; tick < to; tick += step) {
    const x = across(tick);
    svg.append(node('line', { class: 'axis', x1: x, x2: x, y1: TOP, y2: height - AXIS }));
    svg.append(node('text', { x: x + 3, y: height - 8 }, tick ? time(tick) : '0'));
  }
  const focused = picture.contains(document.activeElement);
  picture.replaceChildren(svg);
  if (focused) svg.focus();
}

// Returns a tick interval: 1, 2 or 5 times a power of ten.
function nice(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return [1, 2, 5, 10].map((digit) => digit * power).find((one) => one >= step);
}

// Zooms: multiplies the visible time by `factor`, around the point at `share` of the width.
function zoom(factor, share = 0.5) {
  const { record, from, to } = shown;
  const length = Math.min(Math.max((to - from) * factor, record.seconds * CLOSEST), record.seconds);
  const centre = from + share * (to - from);
  look(centre - share * length, length);
}

addEventListener('resize', () => { if (shown && dialog.open) draw(); });

function look(from, length) {
  const start = Math.min(Math.max(from, 0), shown.record.seconds - length);
  Object.assign(shown, { from: start, to: start + length });
  draw();
}

function move(share) {
  const length = shown.to - shown.from;
  look(shown.from + share * length, length);
}

const ACTIONS = {
  '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), 0: () => zoom(Infinity),
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
};

dialog.addEventListener('keydown', (event) => {
  if (!shown || !ACTIONS[event.key]) return;
  event.preventDefault();
  ACTIONS[event.key]();
});
dialog.addEventListener('click', (event) => {
  const action = { in: '+', out: '-', reset: '0' }[event.target.dataset?.zoom];
  if (shown && action) ACTIONS[action]();
});
picture.addEventListener('wheel', (event) => {
  if (!shown) return;
  event.preventDefault();
  const { left, width } = picture.getBoundingClientRect();
  zoom(event.deltaY < 0 ? 0.8 : 1.25, (event.clientX - left) / width);
}, { passive: false });
picture.addEventListener('pointerdown', (event) => {
  if (!shown) return;
  const [{ from, to }, { width }] = [shown, picture.getBoundingClientRect()];
  const drag = (moved) => look(from - ((moved.clientX - event.clientX) / width) * (to - from), to - from);
  const end = () => {
    removeEventListener('pointermove', drag);
    removeEventListener('pointerup', end);
  };
  addEventListener('pointermove', drag);
  addEventListener('pointerup', end);
});
