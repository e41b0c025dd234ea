// Calls of tools in messages.

import { button, classed, element } from './elements.js';
import { t } from './text.js';

// Letters of a result that are shown. Arguments are shown whole, since the user may consent to them.
const SHOWN = 20_000;

// Returns an element with a call, which opens. A call that waits for consent is open, and `act.consent` gets the answer.
export function shown(call, act) {
  const made = classed('details', 'call', element('summary', t('call'), ' ', element('code', call.name), ' ', classed('span', 'quiet', state(call))));
  made.append(part('arguments', pretty(call.arguments)));
  const { result } = call;
  if (result !== undefined) made.append(part('result', result.length > SHOWN ? `${result.slice(0, SHOWN)}…` : result));
  if (call.state === 'asks' && act) {
    made.open = true;
    const buttons = [['allow', 'yes'], ['allowAlways', 'always'], ['decline', 'no']].map(([name, answer]) => button(t(name), () => act.consent(call, answer)));
    buttons[0].className = 'primary';
    made.append(classed('div', 'tools consent', element('strong', t('askCall', { server: call.server })), ...buttons));
  }
  return made;
}

function state(call) {
  const known = { asks: 'callAsks', runs: 'callRuns', failed: 'callFailed', declined: 'callDeclined' }[call.state];
  if (known) return t(known);
  return call.result === undefined ? t('callWithout') : '';
}

function part(name, text) {
  return element('div', element('h3', t(name)), element('pre', text));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
