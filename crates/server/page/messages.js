// Renders the messages of a conversation.

import { shown as call } from './calls.js';
import { button, classed, copying, element } from './elements.js';
import { shown as file } from './files.js';
import { render } from './markdown.js';
import { shown as picture } from './pictures.js';
import { t } from './text.js';
import * as timeline from './timeline.js';

const place = document.getElementById('messages');
// Pixels from the end within which the view stays at the end.
const NEAR = 60;

// Shows all messages. `act` has the handlers of their buttons.
export function show(conversation, act) {
  if (!conversation?.messages.length) {
    place.replaceChildren(classed('div', 'welcome', element('h1', t('welcome')), element('p', t('welcomeText'))));
    return;
  }
  place.replaceChildren(...conversation.messages.map((message, index) => article(message, index, act)));
  place.scrollTop = place.scrollHeight;
}

// Updates the message that is being streamed, and stays scrolled to the end if it was.
export function write(index, message) {
  const made = place.children[index];
  if (!made) return;
  const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR;
  writeReasoning(made.querySelector('.reasoning'), message);
  const body = made.querySelector('.body');
  if (message.content !== body.written) render(message.content, body);
  body.written = message.content;
  body.classList.toggle('waiting', !message.content && !message.reasoning && !message.calls);
  if (message.calls) writeCalls(made.querySelector('.calls'), message.calls);
  if (isAtEnd) place.scrollTop = place.scrollHeight;
}

function writeCalls(made, calls) {
  const opened = [...made.children].map((one) => one.open);
  const shown = calls.map((one) => call(one));
  shown.forEach((one, number) => { one.open = opened[number] ?? false; });
  made.replaceChildren(...shown);
}

// Shows a message as it is now, with what the user opened.
export function replace(index, message, act) {
  const before = place.children[index];
  if (!before) return;
  const isAtEnd = place.scrollHeight - place.scrollTop - place.clientHeight < NEAR;
  const after = article(message, index, act);
  const opened = [...before.querySelectorAll('details')];
  [...after.querySelectorAll('details')].forEach((one, number) => { one.open ||= opened[number]?.open ?? false; });
  before.replaceWith(after);
  if (isAtEnd) place.scrollTop = place.scrollHeight;
}

// Sets whether screen readers wait until the message is complete.
export function busy(isBusy) {
  place.setAttribute('aria-busy', String(isBusy));
}

function article(message, index, act) {
  const isMine = message.role === 'user';
  const made = classed('article', `message ${message.role}`, element('h2', isMine ? t('you') : message.model || t('answer')));
  if (message.images?.length) made.append(classed('div', 'images', ...message.images.map((url, number) => picture(url, number + 1))));
  if (message.files?.length) made.append(classed('div', 'files', ...message.files.map(file)));
  const body = classed('div', isMine ? 'body' : 'body markdown');
  if (isMine) body.textContent = message.content;
  else {
    made.append(reasoning(message));
    render(message.content, body);
  }
  body.classList.toggle('waiting', Boolean(message.isWaiting) && !message.content && !message.reasoning);
  made.append(body);
  if (!isMine) made.append(classed('div', 'calls', ...(message.calls ?? []).map((one) => call(one, act))));
  if (message.error) {
    const error = classed('p', 'wrong', message.error);
    error.setAttribute('role', 'alert');
    made.append(error);
  }
  if (!message.isWaiting) made.append(...end(message, index, act), tools(message, index, act, made));
  return made;
}

// The reasoning, folded unless it is being written.
function reasoning(message) {
  const made = classed('details', 'reasoning', element('summary'), classed('div', 'markdown'));
  made.firstChild.addEventListener('click', () => { made.isChosen = true; });
  writeReasoning(made, message);
  return made;
}

function writeReasoning(made, message) {
  made.hidden = !message.reasoning;
  if (made.hidden) return;
  const isWriting = message.isWaiting && !message.content && !message.calls;
  if (!made.isChosen) made.open = isWriting;
  const seconds = message.seconds === undefined ? undefined : message.seconds.toFixed(1);
  made.firstChild.textContent = isWriting || seconds === undefined ? t(isWriting ? 'reasoning' : 'reasoned') : t('reasonedFor', { seconds });
  if (made.written !== message.reasoning) render(message.reasoning, made.lastChild);
  made.written = message.reasoning;
}

// A note about an answer that ended early.
function end(message, index, act) {
  if (message.role === 'user' || !['length', 'stopped'].includes(message.finish)) return [];
  const made = classed('p', 'note', t(message.finish === 'length' ? 'cutOff' : 'stopped'));
  if (message.content && !message.calls) made.append(' ', button(t('continue'), () => act.continue(index)));
  return [made];
}

function tools(message, index, act, made) {
  const bar = classed('div', 'tools', copying(message.content));
  if (message.role === 'user') {
    const change = button(t('edit'), () => edit(message, index, act, made));
    change.dataset.edit = '';
    bar.append(change);
    return bar;
  }
  bar.append(button(t('regenerate'), () => act.regenerate(index)));
  if (message.id) bar.append(button(t('timeline'), () => timeline.show(message.id)));
  const text = figures(message);
  if (text) bar.append(classed('span', 'quiet figures', text));
  return bar;
}

// Returns token counts and speeds: `43 tokens, 120 tokens/s · prompt of 31, 12 cached, 300 tokens/s`.
function figures({ usage, timings }) {
  if (!usage) return '';
  const rate = (value) => (value > 0 ? [t('rate', { rate: value.toPrecision(3) })] : []);
  const cached = usage.prompt_tokens_details?.cached_tokens;
  const answer = [t('tokens', { n: usage.completion_tokens }), ...rate(timings?.predicted_per_second)];
  const prompt = [t('promptOf', { n: usage.prompt_tokens }), ...(cached > 0 ? [t('cached', { n: cached })] : []), ...rate(timings?.prompt_per_second)];
  return `${answer.join(', ')} · ${prompt.join(', ')}`;
}

// Replaces a message by an editor.
export function editAt(index) {
  place.children[index]?.querySelector('[data-edit]')?.click();
}

function edit(message, index, act, made) {
  const area = element('textarea');
  area.value = message.content;
  area.rows = Math.min(message.content.split('\n').length + 1, 12);
  area.setAttribute('aria-label', t('editMessage'));
  const send = () => { if (area.value.trim() || message.images || message.files) act.edit(index, area.value); };
  const bar = classed('div', 'tools', button(t('send'), send), button(t('cancel'), () => act.show()));
  area.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') {
      event.stopPropagation();
      act.show();
    }
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  made.replaceChildren(made.firstChild, area, bar);
  area.focus();
}
