// The live panel of a %%tfcluster cell: an anywidget view.
//
//   messages --> Task (facts, items) --> marked as changed --> Panel.flush(), once a frame --> page
//
// Ten messages in a frame cost as much as one, and a log that nobody can see has data, but no elements.
// Whatever a task wrote comes onto the page as textContent, never as html.

const FRAME_ROWS = 1000; // made in one frame; the others wait for the next, so that the page never stalls
const FOLD_WINDOW = 200; // merged rows among which equal ones of several tasks are found
const GROUP_ABOVE = 8; // more tasks than that are grouped by type
const OPEN_FAILED = 4; // so many failures open by themselves where tasks are grouped
const STATES = ["failed", "died", "stalled", "waiting", "running", "starting", "ready", "stopped", "done"];
const hasEnded = (state) => /^(failed|died|stopped|done)$/.test(state);

// ---- small helpers ----

/** An element; "div.row dim" has the classes tfm-row and tfm-dim. */
function h(spec, attributes = {}, ...children) {
	const [tag, names] = spec.split(".");
	const space = /svg|path/.test(tag) ? "2000/svg" : "1999/xhtml";
	const element = document.createElementNS(`http://www.w3.org/${space}`, tag);
	if (names) element.className = names.replace(/\S+/g, "tfm-$&");
	for (const key in attributes) element.setAttribute(key, attributes[key]);
	element.append(...children);
	return element;
}

function button(label, title, act, aria = label) {
	const element = h("button.button", { type: "button", title, "aria-label": aria }, label);
	element.addEventListener("click", () => act(element));
	return element;
}

function setTexts(owner, texts) {
	for (const name in texts) setText(owner[name], texts[name]);
}

/** Spans by their names, as properties of `owner`. */
function addSpans(owner, names) {
	for (const name of names.split(" ")) owner[name] = h("span." + name);
}

function fold(title, ...children) {
	return h("details.fold", {}, h("summary", {}, title), ...children);
}

/** Writes only what differs, and into the text node that is there: a selection in it stays. */
function setText(element, text) {
	const node = element.firstChild;
	if (node?.nodeType !== 3 || node.nextSibling) element.textContent = text;
	else if (node.data !== text) node.data = text;
}

function bytesText(bytes) {
	const units = ["bytes", "kB", "MB", "GB"];
	let unit = 0;
	for (; bytes >= 1000 && unit < 3; unit++) bytes /= 1024;
	return `${bytes.toFixed(unit && bytes < 9.95 ? 1 : 0)} ${units[unit]}`;
}

function timeText(seconds, isExact) {
	if (seconds < 60) return `${isExact ? seconds.toFixed(seconds < 10 ? 2 : 1) : Math.floor(seconds)} s`;
	const two = (number) => String(Math.floor(number) % 60).padStart(2, "0");
	const minutes = seconds / 60;
	return `${minutes < 60 ? Math.floor(minutes) : `${Math.floor(minutes / 60)}:${two(minutes)}`}:${two(seconds)}`;
}

const lineCount = (count) => `${count} line${count === 1 ? "" : "s"}`;
const isSame = (a, b) => a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));

// ---- rows ----

const isRow = (raw) => typeof raw === "string" || Array.isArray(raw);
const rowText = (row) => (typeof row === "string" ? row : row.map((run) => run[1]).join(""));
const kindOf = (raw) => (isRow(raw) ? "row" : ["n", "d", "gap", "x"].find((key) => key in raw));

/** The text of an item; null for what is no line: a gap, a display, a remark. */
function textOf(raw) {
	const row = isRow(raw) ? raw : raw.n;
	return row == null ? null : rowText(row);
}

function styled([style, text]) {
	const span = h("span", {}, text);
	const colours = { f: "", g: "" };
	for (const token of style.split(" ").filter(Boolean)) {
		const value = token.slice(1);
		if (value) colours[token[0]] = value[0] === "#" ? value : `var(--tfm-a${value})`;
		else span.classList.add(`tfm-${token}`);
	}
	let { f, g } = colours;
	if (span.classList.contains("tfm-r")) [f, g] = [g || "var(--tfm-bg)", f || "var(--tfm-fg)"];
	span.style.color = f;
	span.style.backgroundColor = g;
	return span;
}

function fillRow(element, raw) {
	if (raw.gap !== undefined) raw = raw.gap ? `⋯ ${bytesText(raw.gap)} not shown here; the log has them` : "…";
	const row = isRow(raw) ? raw : raw.n ?? raw.x;
	if (typeof row === "string") setText(element, row);
	else element.replaceChildren(...row.map(styled));
}

/** A predicate from what stands in the filter box: null without a filter, undefined for a broken one. */
function filterOf(query) {
	const pattern = /^\/(.+)\/i?$/.exec(query)?.[1];
	try {
		const regex = new RegExp(pattern ?? query.replace(/[^\w\s]/g, "\\$&"), "i");
		return query ? (text) => regex.test(text) : null;
	} catch {
		return undefined;
	}
}

// ---- rich displays ----

const BY_HAND = ["text/html", "image/svg+xml", "image/png", "image/jpeg", "image/gif", "text/plain"];

/** Something with a `node` and perhaps a `dispose`, drawn; `place` is where it will be. */
async function draw(rendermime, data, metadata, place) {
	const byHand = BY_HAND.find((mime) => mime in data);
	const mime = rendermime?.preferredMimeType(data, "ensure");
	// "ensure" leaves out what could run scripts: an svg would become its text. As an <img> it is harmless.
	if (mime && !(mime === "text/plain" && byHand?.startsWith("image/"))) {
		try {
			const renderer = rendermime.createRenderer(mime);
			await renderer.renderModel({ data, metadata, trusted: true, setData() {} });
			return renderer;
		} catch (error) {
			console.warn("tfmagic: cannot render", mime, error);
		}
	}
	await null; // by then `place` is on the page, where a frame takes its colours from
	const text = [data[byHand] ?? `[${Object.keys(data)}]`].flat().join("");
	if (byHand === "text/html") return makeFrame(text, getComputedStyle(place));
	if (!byHand?.startsWith("image/")) return { node: h("div.row", {}, text) };
	const content = byHand.includes("svg") ? `,${encodeURIComponent(text)}` : `;base64,${text.trim()}`;
	const node = h("img", { src: `data:${byHand}${content}`, alt: String(data["text/plain"] ?? "").slice(0, 200) });
	for (const side of ["width", "height"]) if (metadata[byHand]?.[side]) node[side] = metadata[byHand][side];
	await node.decode().catch(() => {});
	return { node };
}

/** Html in a frame of its own origin, which must tell its height itself. */
function makeFrame(html, { color, fontFamily }) {
	const node = h("iframe", { sandbox: "allow-scripts", title: "Output", height: 40 });
	node.srcdoc = `<!doctype html><style>body{margin:0;color:${color};font:13px ${fontFamily}}td,th{padding:2px 8px}</style>
		<body>${html}<script>new ResizeObserver(() => parent.postMessage({tfm: document.body.offsetHeight}, "*"))
		.observe(document.body)</script>`;
	const onMessage = ({ source, data }) => {
		if (source === node.contentWindow && data?.tfm > 0) node.height = Math.min(data.tfm + 2, 4000);
	};
	window.addEventListener("message", onMessage);
	return { node, dispose: () => window.removeEventListener("message", onMessage) };
}

class Display {
	el = h("div.display");
	turn = 0;

	async show(rendermime, data, metadata = {}) {
		const turn = ++this.turn;
		const drawn = await draw(rendermime, data, metadata, this.el);
		if (turn !== this.turn) return drawn.dispose?.(); // a later one came meanwhile
		this.drawn?.dispose?.(); // only now: the old one stays until the new one is drawn
		this.drawn = drawn;
		this.el.replaceChildren(drawn.node);
	}

	dispose() {
		this.turn++;
		this.drawn?.dispose?.();
	}
}

// ---- a log: items, and the elements of those that are on the page ----

class Log {
	/** Items are {no, raw, node, hit, display?}; those without a node are the last ones. */
	constructor(label, { row_limit, fold_noise, log_hint }, rendermime) {
		Object.assign(this, { limit: row_limit, foldNoise: fold_noise, rendermime });
		this.items = [];
		this.gone = []; // items that have left, with elements that have not
		this.changed = new Set();
		this.dirty = this.stick = true;
		this.older = h("div.row remark", { title: log_hint, hidden: "" }, "older lines are in the log");
		this.lines = h("div.lines");
		const attributes = { role: "log", "aria-live": "off", tabindex: 0, "aria-label": label };
		const box = (this.box = h("div.log", attributes, this.older, this.lines));
		const jump = button("↓ jump to end", "Go to the last line and stay there", () => {
			this.follow(true);
			box.focus({ preventScroll: true }); // the button is about to vanish
		});
		jump.classList.add("tfm-jump");
		jump.hidden = true;
		this.el = h("div.logbox", {}, box, jump);
		box.addEventListener("scroll", () => {
			if (!box.clientHeight) return; // hidden just now
			jump.hidden = this.stick = box.scrollHeight - box.scrollTop - box.clientHeight < 12;
		});
		box.addEventListener("keydown", (event) => event.stopPropagation());
		new ResizeObserver(() => this.follow()).observe(this.lines); // an image came, or the panel was opened
	}

	follow(isForced) {
		const selection = getSelection();
		const isSelecting = !selection.isCollapsed && this.box.contains(selection.anchorNode);
		if (isForced || (this.stick && !isSelecting)) this.box.scrollTop = 1e9;
	}

	/** The place of the first item with this number or a higher one. */
	place(no) {
		return this.items.findLastIndex((item) => item.no < no) + 1;
	}

	drop(from, count = Infinity) {
		const dropped = this.items.splice(from, count);
		for (const item of dropped) this.changed.delete(item);
		this.gone.push(...dropped.filter((item) => item.node));
		this.dirty = true;
	}

	push(item) {
		this.items.push(item);
		this.dirty = true;
		if (this.items.length <= this.limit) return;
		this.drop(0, 1);
		this.isTrimmed = true;
	}

	touch(item) {
		if (item.node) this.changed.add(item);
		this.dirty = true;
	}

	/** Returns how many elements were made. */
	render(budget, matches) {
		const groups = new Set();
		for (const { node, display } of this.gone) {
			if (node.parentNode?.nodeName === "DETAILS") groups.add(node.parentNode);
			display?.dispose();
			node.remove();
		}
		this.gone = [];
		for (const item of this.changed) {
			this.fill(item);
			this.match(item, matches);
		}
		this.changed.clear();
		const { items } = this;
		let from = items.length;
		while (from && !items[from - 1].node) from--;
		const to = Math.min(items.length, from + budget);
		const fragment = document.createDocumentFragment();
		for (let place = from; place < to; place++) {
			const item = items[place];
			const kind = kindOf(item.raw);
			if (kind === "d") item.display = new Display();
			item.node = item.display?.el ?? h("div.row" + { row: "", n: " dim", gap: " remark", x: " remark" }[kind]);
			this.fill(item);
			this.match(item, matches);
			if (kind === "n" && this.foldNoise) {
				let group = items[place - 1]?.node.parentNode; // of the line before, if that is noise, too
				if (group?.nodeName !== "DETAILS") fragment.append((group = h("details.noise", {}, h("summary"))));
				group.append(item.node);
				groups.add(group);
			} else fragment.append(item.node);
		}
		this.lines.append(fragment);
		for (const group of groups) {
			const size = group.childElementCount - 1;
			if (size) setText(group.firstChild, `TensorFlow start-up: ${lineCount(size)}`);
			else group.remove();
		}
		this.older.hidden = !this.isTrimmed;
		this.dirty = to < items.length;
		return to - from;
	}

	fill({ node, raw, display }) {
		if (display) display.show(this.rendermime, raw.d, raw.m);
		else fillRow(node, raw);
	}

	prefix() {
		return "";
	}

	match(item, matches) {
		const text = textOf(item.raw);
		item.hit = text !== null && (!matches || matches(this.prefix(item) + text));
		item.node.hidden = !!matches && !item.hit;
	}

	filter(matches) {
		for (const item of this.items) if (item.node) this.match(item, matches);
		this.follow();
	}

	dispose() {
		for (const item of this.items.concat(this.gone)) item.display?.dispose();
	}
}

/** All tasks' rows in one, each with its task before it; equal ones of several tasks are one. */
class MergedLog extends Log {
	constructor(setup) {
		super("Output of all tasks, merged", setup);
		this.foldEqual = setup.fold_equal;
		this.box.classList.add("tfm-stream");
		this.el.hidden = true;
		this.clear();
	}

	clear() {
		this.drop(0);
		this.next = 0;
		this.recent = new Map(); // text → the last item with it
		this.isTrimmed = false;
	}

	add(task, raw) {
		if (raw.d) raw = { x: `[${Object.keys(raw.d)[0]}: shown in its task]` };
		const text = textOf(raw);
		const equal = this.foldEqual && text !== null && this.recent.get(text);
		if (equal && equal.no >= this.next - FOLD_WINDOW && textOf(equal.raw) === text && !equal.names.has(task.name)) {
			equal.names.add(task.name);
			this.touch(equal);
			return equal;
		}
		const item = { no: this.next++, raw, task, names: new Set([task.name]) };
		if (this.recent.size > 4 * FOLD_WINDOW) this.recent.clear();
		this.recent.set(text, item);
		this.push(item);
		return item;
	}

	/** A row changed after it had come in here (a bar above another one); returns where it is now. */
	amend(item, task, raw) {
		this.touch(item);
		if (item.names.size > 1 && item.names.delete(task.name)) return this.add(task, raw);
		item.raw = raw;
		return item;
	}

	prefix({ task }) {
		return `[${task.name}]:`.padEnd(14) + " ";
	}

	fill(item) {
		const { node, raw, task, names } = item;
		const content = h("span");
		fillRow(content, raw);
		node.replaceChildren(h(`span.prefix c${task.number % 6}`, {}, this.prefix(item)), content);
		if (names.size > 1) node.append(h("span.times", { title: [...names].join(", ") }, `×${names.size}`));
	}
}

// ---- a task ----

class Task {
	constructor(panel, { name, type }, number) {
		Object.assign(this, { panel, name, type, number });
		this.facts = { state: "…" };
		this.samples = [];
		this.log = new Log(`Output of ${name}`, panel.setup, panel.rendermime);
		addSpans(this, "state line source note last cpu memory");
		this.path = h("path");
		const spark = h("svg", { viewBox: "0 0 60 16", preserveAspectRatio: "none", "aria-hidden": "true" }, this.path);
		const head = h("summary.head", {}, this.state, h("b.name", {}, name), h("span.where", {}, this.line, this.source),
			this.note, this.last, h("span.usage", {}, this.cpu, spark, this.memory));
		this.body = h("div.body");
		this.el = h("details.task", {}, head, this.body);
		this.el.open = panel.setup.open.includes(number);
		this.el.addEventListener("toggle", () => panel.onToggle(this));
		this.isChanged = true;
	}

	/** What is only seen when open is made when it is first opened: 64 closed tasks are cheap. */
	makeBody() {
		if (this.body.firstChild) return;
		const { panel, number, name } = this;
		const ask = (kind) => (element) => panel.ask({ kind, task: number }, element);
		this.tools = [
			button("Interrupt", "Interrupt this task, as Ctrl-C", ask("interrupt"), `Interrupt ${name}`),
			button("Kill", "End this task's process", ask("kill"), `Kill ${name}`),
			button("Stacks", "Where each of its threads is now", ask("stacks"), `Stacks of ${name}`),
			button("Open log", "The whole log in a window", () => panel.openLog(this), `Open log of ${name}`),
		];
		this.written = h("span.written");
		this.error = h("div.error", { hidden: "" });
		this.body.append(h("div.toolbar", {}, this.written, ...this.tools), this.error, this.log.el);
	}

	update(facts) {
		const before = this.facts.state;
		Object.assign(this.facts, facts);
		if (before !== this.facts.state) this.panel.onState(this, before);
		this.isChanged = true;
	}

	/** Once a second: the kernel sends what has changed, a curve needs what has not, too. */
	sample() {
		const { cpu, state } = this.facts;
		const samples = (this.samples = cpu == null || hasEnded(state) ? [] : [...this.samples.slice(-59), cpu]);
		const top = Math.max(100, ...samples);
		const points = samples.map((value, i) => `${61 - samples.length + i} ${15 - (14 * value) / top}`);
		this.path.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
	}

	/** Items from number `base` on. What is the same stays as it is, whatever the message repeats. */
	patch({ base, items: raws }, at) {
		const { log } = this;
		const { items } = log;
		if (items.length && base > items.at(-1).no + 1) log.push({ no: base - 1, raw: { gap: null }, at, pos: -1, task: this });
		let place = log.place(base);
		raws.forEach((raw, pos) => {
			const old = items[place++];
			if (old?.no === base + pos && this.change(old, raw)) return;
			log.drop(place - 1);
			log.push({ no: base + pos, raw, at, pos, task: this });
		});
		log.drop(place);
		log.isTrimmed = items.length > 0 && items[0].no > 0;
	}

	/** Whether the item could become this. */
	change(item, raw) {
		if (isSame(item.raw, raw)) return true;
		if (kindOf(item.raw) !== kindOf(raw)) return false;
		item.raw = raw;
		this.log.touch(item);
		if (item.merged && !raw.d) item.merged = this.panel.merged.amend(item.merged, this, raw);
		return true;
	}

	replace(raws) {
		for (const key in raws) {
			const item = this.log.items[this.log.place(+key)];
			if (item?.no === +key) this.change(item, raws[key]);
		}
	}

	/** A snapshot. Older rows stay where it goes on with them: the kernel repeats it until a page has answered. */
	reset(rows, at) {
		const { log } = this;
		const old = rows && log.items[log.place(rows.base)];
		if (!rows || old?.no !== rows.base || !isSame(old.raw, rows.items[0])) log.drop(0);
		this.facts = { state: this.facts.state };
		this.isChanged = true;
		if (rows) this.patch(rows, at);
		for (const item of log.items) item.merged = undefined;
	}

	paint() {
		const { state, line, where, source, note, error, last, cpu, memory, seconds } = this.facts;
		const isEnd = hasEnded(state);
		this.isChanged = false;
		this.el.dataset.state = state;
		const hasLine = line > 0 && (!isEnd || state === "failed");
		const words = error ? `${error.type}: ${error.message}` : last ? rowText(last) : "";
		const time = seconds == null ? "" : timeText(seconds, true);
		setTexts(this, {
			state,
			line: hasLine ? `${where ? `${where} ` : ""}line ${line}` : "",
			source: (hasLine && source) || "",
			note: note || "",
			last: words.slice(0, 300), // more is never seen, and a long line costs
			cpu: isEnd || cpu == null ? "" : `${Math.round(cpu)} %`,
			memory: isEnd ? time : memory == null ? "" : bytesText(memory),
		});
		if (this.el.open) this.paintBody();
	}

	paintBody() {
		this.makeBody();
		const { state, bytes, error } = this.facts;
		const { over } = this.panel.head;
		const disabled = [hasEnded(state), state === "died", state === "died", false];
		this.tools.forEach((tool, i) => (tool.disabled = over || disabled[i])); // afterwards nobody would answer
		setText(this.written, bytes ? `${bytesText(bytes)} written` : "");
		if (isSame(error ?? null, this.errorShown ?? null)) return;
		this.errorShown = error;
		this.error.hidden = !error;
		if (!error) return;
		const { type, message, line, text } = error;
		const parts = [h("div.message", {}, h("b", {}, type), message && `: ${message}`)];
		if (line) parts.push(h("span.at", {}, `line ${line} of the cell`));
		if (text) parts.push(fold("Traceback", h("pre", { tabindex: 0 }, text)));
		this.error.replaceChildren(...parts);
	}

	/** A fold below the log, in the place of the one before. */
	addFold(key, title, ...children) {
		this.makeBody();
		this[key]?.remove();
		this[key] = fold(title, ...children);
		this[key].open = true;
		this.body.append(this[key]);
		return this[key];
	}
}

// ---- the whole log, in a window or in place ----

/** Gives a function that takes the parts, one after another; `root` is an element in any document. */
function showLog(root) {
	const make = (tag, text) => {
		const element = root.ownerDocument.createElement(tag);
		element.textContent = text;
		return element;
	};
	const facts = make("p", "waiting for the kernel…");
	const pre = make("pre", "");
	let rest = "";
	root.append(facts, pre);
	return ({ path, text, part, parts, skipped_bytes: skipped }) => {
		facts.textContent = path + (skipped ? ` — the first ${bytesText(skipped)} are left out` : "");
		const lines = (rest + text).split("\n");
		rest = part + 1 < parts ? lines.pop() : "";
		// Blocks that are laid out only when they come into view: megabytes in one would freeze the browser.
		while (lines.length) {
			const some = lines.splice(0, 400);
			const block = make("div", some.join("\n"));
			block.style.cssText = `content-visibility:auto;contain-intrinsic-size:auto ${some.length * 1.5}em`;
			pre.append(block);
		}
	};
}

const WINDOW_STYLE = `:root { color-scheme: light dark } body { margin: 16px; font: 13px/1.45 ui-monospace, monospace }
	p { opacity: .7 } pre { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere }`;

// ---- the panel ----

class Panel {
	constructor(model, el) {
		this.model = model;
		this.rendermime = model.widget_manager?.rendermime;
		const setup = (this.setup = model.get("setup"));
		this.head = { elapsed: 0, done: 0, total: setup.tasks.length, over: false };
		this.matches = null;
		this.messages = this.opened = this.ticks = 0;
		this.isMerged = false;
		this.news = [];
		this.values = [];
		this.takers = {}; // request for a log: what takes its parts
		this.request = Math.floor(Math.random() * 1e9); // other views of this model ask, too
		this.merged = new MergedLog(setup);
		const tasks = (this.tasks = setup.tasks.map((spec, number) => new Task(this, spec, number)));
		this.logs = [this.merged, ...tasks.map((task) => task.log)];
		this.wished = this.wish(); // the kernel begins with it
		this.waiting = h("div.waiting", { hidden: "" }, "waiting for the kernel… (it answers when it is free)");
		this.valuesBox = h("div.values");
		this.live = h("div.sr", { "aria-live": "polite" });
		this.root = h("div.root", { "data-lm-suppress-shortcuts": "true" }, this.makeHeader(), this.waiting,
			...this.makeLists(), this.merged.el, this.valuesBox, this.live);
		const longest = Math.max(...tasks.map((task) => task.name.length));
		this.root.style.setProperty("--tfm-name", `${longest + 1}ch`);
		el.append(this.root);
		this.onMessage = (message) => message?.kind === "update" && this.receive(message);
		model.on("msg:custom", this.onMessage);
		model.send({ kind: "hello" });
		this.timer = setInterval(() => this.tick(), 250);
		setTimeout(() => (this.waiting.hidden = this.messages > 0), 1500);
		this.schedule();
	}

	makeHeader() {
		const { cell, cluster, shape } = this.setup;
		addSpans(this, "icon elapsed done counts words found");
		const attributes = { type: "search", placeholder: "Filter", title: "Text, or /regular expression/" };
		this.query = h("input.query", { ...attributes, "aria-label": "Filter lines" });
		this.query.addEventListener("keydown", (event) => event.stopPropagation()); // "d d" deletes a cell, elsewhere
		this.query.addEventListener("input", () => {
			clearTimeout(this.filterTimer);
			this.filterTimer = setTimeout(() => this.filter(), 100);
		});
		this.switch = button("merged", "All tasks' lines in one stream", () => this.merge(), "Merged");
		this.switch.className = "tfm-switch";
		this.switch.role = "switch";
		this.switch.ariaChecked = "false";
		const ask = (kind) => (element) => this.ask({ kind }, element);
		this.buttons = [
			button("Interrupt", "Interrupt every task, as Ctrl-C", ask("interrupt")),
			button("Stop", "Stop the cluster: end every task", ask("stop")),
		];
		this.bar = h("div");
		this.icon.ariaHidden = "true";
		const facts = [this.icon, h("b.cluster", {}, cluster), h("span.shape", {}, shape), this.elapsed, this.done];
		return h("div.header", { role: "group", "aria-label": `Cell ${cell} on cluster ${cluster}` },
			h("div.facts", {}, ...facts, this.counts, this.words),
			h("div.tools", {}, this.found, this.query, this.switch, ...this.buttons), h("div.bar", {}, this.bar));
	}

	makeLists() {
		const elements = (tasks) => tasks.map((task) => task.el);
		this.groups = [];
		if (this.tasks.length <= GROUP_ABOVE) return [h("div.list", {}, ...elements(this.tasks))];
		for (const type of new Set(this.tasks.map((task) => task.type))) {
			const tasks = this.tasks.filter((task) => task.type === type);
			const counts = h("span");
			const summary = h("summary", {}, h("b", {}, `${type} × ${tasks.length}`), " — ", counts);
			const el = h("details.group", { open: "" }, summary, h("div.list scroll", {}, ...elements(tasks)));
			this.groups.push({ tasks, counts, el });
		}
		return elements(this.groups);
	}

	// -- from the kernel --

	receive({ reset, head, tasks = {}, rows = {}, replaced, values, stacks, log }) {
		const at = ++this.messages;
		this.waiting.hidden = true;
		if (head) this.receiveHead(head);
		if (reset) this.reset(tasks, rows, at);
		for (const key in tasks) this.tasks[key]?.update(tasks[key]);
		if (!reset) for (const key in rows) this.tasks[key]?.patch(rows[key], at);
		for (const key in replaced) this.tasks[key]?.replace(replaced[key]); // displays that the cell updated, by number
		if (values) this.showValues(values);
		for (const key in stacks) {
			const title = `Stacks at ${new Date().toLocaleTimeString("en-GB")}`;
			this.tasks[key]?.addFold("stacks", title, h("pre", { tabindex: 0 }, stacks[key]));
		}
		if (log) this.takers[log.request]?.(log);
		this.schedule();
	}

	receiveHead(head) {
		const wasOver = this.head.over;
		Object.assign(this.head, head);
		if ("elapsed" in head) this.since = performance.now() - head.elapsed * 1000;
		if (!head.over || wasOver) return;
		clearInterval(this.timer);
		for (const task of this.tasks) task.isChanged = true; // their buttons
		if (this.messages > 1) this.news.push(`Cell ${this.setup.cell} is over: ${this.head.verdict}`);
	}

	reset(tasks, rows, at) {
		this.merged.clear();
		for (const task of this.tasks) task.reset(rows[task.number], at);
		// A kernel that remembers the wishes of an older page does not send what this one has open.
		if (this.wish().tasks.every((number) => rows[number])) return;
		this.wished = null;
		this.sendWish();
	}

	showValues(values) {
		for (const display of this.values) display.dispose();
		this.values = values.map(() => new Display());
		const rows = values.map(({ tasks, data, metadata }, place) => {
			const names = tasks.length > 2 && tasks.length === this.tasks.length ? "all tasks" : tasks.join(", ");
			this.values[place].show(this.rendermime, data, metadata);
			return h("div.value", {}, h("span.label", {}, names), this.values[place].el);
		});
		this.valuesBox.replaceChildren(...rows);
	}

	onState(task, before) {
		const { state, error } = task.facts;
		if (state !== "failed" && state !== "died") return;
		if (before !== "…") this.news.push(`${task.name} ${state}${error ? `: ${error.type}: ${error.message}` : ""}`);
		if (task.wasOpened || (this.groups.length && this.opened >= OPEN_FAILED)) return;
		task.wasOpened = task.el.open = true; // its toggle event does what else must be done
		this.opened++;
	}

	// -- from the user --

	ask(message, element) {
		this.model.send(message);
		element.animate({ opacity: [0.3, 1] }, 500); // the kernel may take its time: the click was seen
	}

	onToggle(task) {
		task.isChanged = true;
		this.sendWish();
		this.schedule();
	}

	wish() {
		const open = this.tasks.filter((task) => task.el.open);
		return { kind: "watch", tasks: open.map((task) => task.number), merged: this.isMerged };
	}

	sendWish() {
		clearTimeout(this.wishTimer);
		this.wishTimer = setTimeout(() => {
			const wish = this.wish();
			if (!isSame(wish, this.wished)) this.model.send((this.wished = wish));
		}, 50);
	}

	merge() {
		this.isMerged = !this.isMerged;
		this.switch.ariaChecked = this.isMerged;
		this.root.classList.toggle("tfm-merged", this.isMerged);
		this.merged.el.hidden = !this.isMerged;
		this.sendWish();
		this.schedule();
	}

	filter() {
		const matches = filterOf(this.query.value.trim());
		this.query.ariaInvalid = matches === undefined;
		this.matches = matches ?? null;
		for (const log of this.logs) log.filter(this.matches);
		this.schedule();
	}

	openLog(task) {
		const page = window.open("", "_blank")?.document;
		if (page) {
			page.title = task.name;
			page.head.append(page.createElement("style"));
			page.head.lastChild.textContent = WINDOW_STYLE;
		}
		const root = page?.body ?? task.addFold("wholeLog", `Log of ${task.name}`);
		this.takers[++this.request] = showLog(root);
		this.model.send({ kind: "log", task: task.number, request: this.request });
	}

	// -- onto the page --

	schedule() {
		this.frame ??= requestAnimationFrame(() => this.flush());
	}

	flush() {
		this.frame = undefined;
		for (const task of this.tasks) if (task.isChanged) task.paint();
		if (this.isMerged) this.mergeFinished();
		let budget = FRAME_ROWS;
		const written = this.seenLogs().filter((log) => log.dirty);
		for (const log of written) budget -= log.render(Math.max(budget, 0), this.matches);
		this.paintHead();
		if (this.news.length > 4) this.news.splice(3, Infinity, `And ${this.news.length - 3} more`);
		if (this.news.length) setText(this.live, this.news.splice(0).join(". "));
		for (const log of written) log.follow(); // after all writing: one layout serves all
		if (written.some((log) => log.dirty)) this.schedule();
	}

	seenLogs() {
		return this.isMerged ? [this.merged] : this.tasks.filter((task) => task.el.open).map((task) => task.log);
	}

	mergeFinished() {
		const end = this.head.over ? undefined : -1; // a task's last item may still change
		const found = this.tasks.flatMap(({ log }) => log.items.slice(0, end).filter((item) => !item.merged));
		found.sort((a, b) => a.at - b.at || a.pos - b.pos); // as they came, in turn
		for (const item of found) item.merged = this.merged.add(item.task, item.raw);
	}

	paintHead() {
		const { done, total, over, verdict, queued, message } = this.head;
		const word = over ? verdict || "done" : "";
		this.root.dataset.verdict = word;
		this.root.dataset.failed = this.tasks.some((task) => /failed|died/.test(task.facts.state));
		setTexts(this, {
			icon: word && ({ done: "✓", failed: "✕" }[word] ?? "■"),
			done: word || `${done} of ${total} done`,
			words: queued || message || "",
			found: this.matches ? this.countFound() : "",
		});
		this.bar.style.width = `${over ? 100 : (100 * done) / Math.max(total, 1)}%`;
		for (const element of this.buttons) element.disabled = over;
		const badges = countStates(this.tasks).filter(({ state }) => state !== "done");
		if (!isSame(badges, this.badges)) {
			const made = badges.map(({ state, text }) => h("span.state", { "data-state": state }, text));
			this.counts.replaceChildren(...made);
			this.badges = badges;
		}
		for (const { tasks, counts } of this.groups) {
			setText(counts, countStates(tasks).map(({ text }) => text).join(", "));
		}
		this.paintElapsed();
	}

	countFound() {
		const lines = this.seenLogs().flatMap((log) => log.items).filter((item) => textOf(item.raw) !== null);
		return `${lines.filter((item) => item.hit).length} of ${lineCount(lines.length)}`;
	}

	paintElapsed() {
		const { over, elapsed } = this.head;
		setText(this.elapsed, timeText(over || !this.since ? elapsed : (performance.now() - this.since) / 1000, over));
	}

	tick() {
		this.paintElapsed();
		if (++this.ticks % 4 === 0) for (const task of this.tasks) task.sample();
	}

	dispose() {
		this.model.off("msg:custom", this.onMessage);
		clearInterval(this.timer);
		clearTimeout(this.wishTimer);
		cancelAnimationFrame(this.frame);
		for (const log of this.logs) log.dispose();
		for (const display of this.values) display.dispose();
		this.root.remove();
	}
}

function countStates(tasks) {
	const some = STATES.map((state) => ({ state, count: tasks.filter(({ facts }) => facts.state === state).length }));
	return some.filter(({ count }) => count).map(({ state, count }) => ({ state, text: `${count} ${state}` }));
}

export default {
	render({ model, el }) {
		const panel = new Panel(model, el);
		return () => panel.dispose();
	},
};
