// The live panel of a %%tfcluster cell: an anywidget view.
//
//   messages --> Task (facts, items) --> marked as changed --> Panel.flush(), once a frame --> page
//
// A log that is not visible has no elements. Output of a task becomes textContent, never html.

const FRAME_ROWS = 240; // made in one frame, the newest first; most rows of a flood are never made
const FOLD_WINDOW = 200; // merged rows among which equal ones of several tasks are found
const GROUP_ABOVE = 8; // more tasks than that are grouped by type
const QUIET = "data-lm-suppress-shortcuts";
const BEAT_MS = 20000; // between reports that this page is open
const TOLD_MS = 2000; // between sentences to a screen reader
const TOLD_CHARACTERS = 200; // of a sentence
const AGAIN_MS = 60000; // until the same is told again
const SILENT_MS = 3000; // without an answer of the kernel until that is said
const FRESH_MS = 20000; // so long after its end a form is told: an older one is of a saved notebook

// ---- small helpers ----

/** An element; "div.row dim" has the classes tfm-row and tfm-dim. */
function h(spec, attributes = {}, ...children) {
	const [tag, names] = spec.split(".");
	const space = /svg|path/.test(tag) ? "2000/svg" : "1999/xhtml";
	const element = document.createElementNS(`http://www.w3.org/${space}`, tag);
	if (names) element.className = names.replace(/\S+/g, "tfm-$&");
	for (const key in attributes) element.setAttribute(key, attributes[key]);
	// Without this, "d d" deletes the cell: Lab's shortcut looks at the focused element only.
	if (/summary|button|input/.test(tag) || "tabindex" in attributes) element.setAttribute(QUIET, "true");
	element.append(...children);
	return element;
}

function button(label, title, act, aria = label) {
	const element = h("button.button", { type: "button", title, "aria-label": aria }, label);
	element.addEventListener("click", () => element.ariaDisabled === "true" || act(element));
	return element;
}

/** Let a button do nothing. It can have the focus, which would fall to the page from one with `disabled`. */
function setDisabled(element, isDisabled) {
	element.ariaDisabled = String(isDisabled);
}

/**
 * A button that says at the first press what it costs, and acts at a second one: within 5 s, or, for those who read
 * more slowly and use the keyboard, as long as it has the focus. Escape takes the first press back.
 */
function carefulButton(label, title, cost, act, aria = label) {
	let timer;
	const arm = (isArmed) => {
		clearTimeout(timer);
		setText(element, isArmed ? cost : label);
		element.ariaLabel = isArmed ? cost : aria;
		element.classList.toggle("tfm-armed", isArmed);
	};
	const isArmed = () => element.classList.contains("tfm-armed");
	const element = button(label, title, () => {
		const isSecond = isArmed();
		arm(!isSecond);
		if (isSecond) act(element);
		else if (!element.matches(":focus")) timer = setTimeout(arm, 5000, false);
	}, aria);
	element.addEventListener("blur", () => arm(false));
	element.addEventListener("keydown", (event) => {
		if (event.key !== "Escape" || !isArmed()) return;
		event.stopPropagation();
		arm(false);
	});
	return element;
}

/** Return the element whose new lines screen readers read. It belongs to the page: it stays when the panel goes. */
function liveRegion() {
	const region = document.querySelector(".tfm-announcements") ?? h("div.announcements sr", { "aria-live": "polite" });
	if (!region.isConnected) {
		region.cells = new Set(); // whose end was told
		document.body.append(region);
		setTimeout(tellForms, 100, document.body); // a line that comes with the region is not read
		new MutationObserver((records) => {
			for (const { addedNodes } of records) for (const node of addedNodes) if (node.nodeType === 1) tellForms(node);
		}).observe(document.body, { childList: true, subtree: true });
	}
	return region;
}

/** Read out each new form of a cell that failed, or has a hint, before its panel could: most such cells have none. */
function tellForms(added) {
	const said = "[data-tfmagic-said]";
	for (const { dataset } of added.matches(said) ? [added] : added.querySelectorAll(said)) {
		const { cells } = liveRegion();
		if (cells.has(dataset.tfmagic) || Math.abs(Date.now() - 1000 * dataset.tfmagicEnded) > FRESH_MS) continue;
		cells.add(dataset.tfmagic);
		announce(dataset.tfmagicSaid);
	}
}

function announce(text) {
	const line = h("p", {}, text);
	liveRegion().append(line);
	setTimeout(() => line.remove(), 10000);
}

function mergedSwitch(act) {
	const element = button("merged", "All tasks' lines in one stream", act, "Merged");
	return Object.assign(element, { className: "tfm-switch", role: "switch", ariaChecked: "false" });
}

function setTexts(owner, texts) {
	for (const name in texts) setText(owner[name], texts[name]);
}

/** Add spans as properties of `owner`, by their names. */
function addSpans(owner, names) {
	for (const name of names.split(" ")) owner[name] = h("span." + name);
}

function fold(title, text) {
	return h("details.fold", {}, h("summary", {}, title), ...(text ? [h("pre", { tabindex: 0 }, text)] : []));
}

/** Write only a text that differs, and keep the text node, so that a selection stays. */
function setText(element, text) {
	const node = element.firstChild;
	if (node?.nodeType !== 3 || node.nextSibling) element.textContent = text;
	else if (node.data !== text) node.data = text;
}

/** Return the time of a cell that runs; the kernel writes all other times and sizes. */
function clockText(seconds) {
	if (seconds < 60) return `${Math.floor(seconds)} s`;
	const two = (number) => String(Math.floor(number % 60)).padStart(2, "0");
	return `${Math.floor(seconds / 3600)}:${two(seconds / 60)}:${two(seconds)}`.replace(/^0:0?/, "");
}

const lineCount = (count) => `${count} line${count === 1 ? "" : "s"}`;
const isSame = (a, b) => a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));

// ---- rows ----

const isRow = (raw) => typeof raw === "string" || Array.isArray(raw);
const rowText = (row) => (typeof row === "string" ? row : row.map((run) => run[1]).join(""));
const kindOf = (raw) => (isRow(raw) ? "row" : ["n", "d", "gap", "x", "html"].find((key) => key in raw));

/** Return the text of an item; null for a gap, a display or a remark. */
function textOf(raw) {
	const row = isRow(raw) ? raw : raw.n ?? raw.text;
	return row == null ? null : rowText(row);
}

function styled([style, text]) {
	const span = h("span", {}, text);
	const colours = { f: "", g: "" };
	for (const token of style.split(" ").filter(Boolean)) {
		const value = token.slice(1);
		if (value) colours[token[0]] = value[0] === "#" ? value : `var(--tfm-${token[0] === "f" ? "a" : "b"}${value})`;
		else span.classList.add(`tfm-${token}`);
	}
	let { f, g } = colours;
	if (span.classList.contains("tfm-r")) [f, g] = [g || "var(--tfm-bg)", f || "var(--tfm-fg)"];
	Object.assign(span.style, { color: f, backgroundColor: g });
	return span;
}

function fillRow(element, raw) {
	if (raw.html !== undefined) return (element.innerHTML = raw.html); // a line of a form, which was sanitized
	if (raw.gap !== undefined) raw = raw.gap || "…";
	const row = isRow(raw) ? raw : raw.n ?? raw.x;
	if (typeof row === "string") setText(element, row);
	else element.replaceChildren(...row.map(styled));
}

/** Return {matches}, a predicate that is null without a filter; {error} where the filter is no regular expression. */
function filterOf(query) {
	const pattern = /^\/(.+)\/i?$/.exec(query)?.[1];
	try {
		const regex = new RegExp(pattern ?? query.replace(/[^\w\s]/g, "\\$&"), "i");
		return { matches: query ? (text) => regex.test(text) : null };
	} catch ({ message }) {
		return { matches: null, error: `no regular expression: ${message.split(": ").at(-1)}` };
	}
}

/** A search box that calls `apply` with its text shortly after the last key. */
function searchBox(apply) {
	const attributes = { type: "search", placeholder: "Filter", title: "Text, or /regular expression/" };
	const box = h("input.query", { ...attributes, "aria-label": "Filter lines" });
	let timer;
	box.addEventListener("input", () => {
		clearTimeout(timer);
		timer = setTimeout(() => apply(box.value.trim()), 100);
	});
	box.addEventListener("keydown", (event) => {
		if (event.key !== "Escape" || !box.value) return;
		event.stopPropagation();
		box.value = "";
		apply("");
	});
	return box;
}

// ---- rich displays ----

const WIDGET = "application/vnd.jupyter.widget-view+json";
const managers = new WeakMap(); // of widgets, by the rendermime of their notebook

/** Return {node, dispose?} for `place`, its parent to be. */
async function draw(rendermime, data, metadata, place) {
	const svg = "image/svg+xml"; // without its namespace, a browser takes it for no image
	if (data[svg]) data = { ...data, [svg]: [data[svg]].flat().join("").replace(/<svg\b(?![^>]*\sxmlns\s*=)/, '<svg xmlns="http://www.w3.org/2000/svg"') };
	const known = ["text/html", svg, "image/png", "image/jpeg", "image/gif", "text/markdown", "text/latex", "application/json", "text/plain"];
	const byHand = known.find((mime) => mime in data);
	const mime = rendermime?.preferredMimeType(data, "ensure");
	// "ensure" excludes svg, which could run scripts; as an <img> it cannot.
	if (mime && !(mime === "text/plain" && byHand?.startsWith("image/"))) {
		try {
			const renderer = rendermime.createRenderer(mime);
			await renderer.renderModel({ data, metadata, trusted: true, setData() {} });
			renderer.hasMath = /html|markdown|latex/.test(mime); // it typesets formulas only in a Lumino parent
			return renderer;
		} catch (error) {
			console.warn("tfmagic: cannot render", mime, error);
		}
	}
	await null; // then `place` is on the page, and a frame can take its colours from there
	const value = data[byHand] ?? `[${Object.keys(data)}]`;
	const text = byHand === "application/json" ? JSON.stringify(value, null, 2) : [value].flat().join("");
	if (byHand === "text/html") return makeFrame(text, getComputedStyle(place));
	if (!byHand?.startsWith("image/")) return { node: h("div.row", {}, text) };
	const content = byHand.includes("svg") ? `,${encodeURIComponent(text)}` : `;base64,${text.trim()}`;
	const node = h("img", { src: `data:${byHand}${content}`, alt: String(data["text/plain"] ?? "").slice(0, 200) });
	if (metadata[byHand]?.width) node.width = metadata[byHand].width;
	await node.decode().catch(() => {});
	return { node };
}

/** Show html in a frame of its own origin, which reports its height by itself. */
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

/** Return the view of a task's widget; null where there is none. The message that makes it can be late. */
async function makeView(rendermime, id, onEnd) {
	const manager = managers.get(rendermime);
	for (let tries = 0; tries < 50 && manager && !manager.has_model(id); tries++) {
		await new Promise((resolve) => setTimeout(resolve, 100));
	}
	if (!manager?.has_model(id)) return null;
	const model = await manager.get_model(id);
	model.once("destroy", onEnd);
	return (await manager.create_view(model)).luminoWidget;
}

class Display {
	el = h("div.display");
	turn = 0;

	async show(rendermime, data, metadata = {}) {
		this.text = data["text/plain"] ?? "";
		const id = data[WIDGET]?.model_id;
		if (id && id === this.widget) return this.isGone && this.showText(); // else it shows its state by itself
		const turn = ++this.turn;
		this.widget = id;
		const view = id && (await makeView(rendermime, id, () => this.showText()).catch(console.warn));
		if (id && !view) data = { "text/plain": this.text };
		const drawn = view || (await draw(rendermime, data, metadata, this.el));
		if (turn !== this.turn) return drawn.dispose?.(); // a later call has begun
		this.drawn?.dispose?.(); // only now: the old one stays until the new one is drawn
		this.drawn = drawn;
		const needsLumino = view && this.el.isConnected; // a widget waits for its messages
		this.el.replaceChildren(...(needsLumino ? [] : [drawn.node]));
		if (needsLumino) view.constructor.attach(view, this.el);
		else if (drawn.hasMath) rendermime.latexTypesetter?.typeset(drawn.node);
	}

	/** The task has closed its widget, or has ended. */
	showText() {
		this.turn++;
		this.isGone = true;
		this.el.replaceChildren(h("div.row", {}, this.text));
		this.el.hidden = !this.text;
	}

	dispose() {
		this.turn++;
		this.drawn?.dispose?.();
	}
}

// ---- logs ----

class Log {
	items = []; // {no, raw, node?, hit?, display?}
	gone = []; // removed items, whose elements are still on the page
	changed = new Set();
	dirty = true;
	stick = true;

	constructor(label, { row_limit, fold_noise, log_hint }, rendermime) {
		Object.assign(this, { limit: row_limit, foldNoise: fold_noise, rendermime });
		this.older = h("div.row remark", { title: log_hint, hidden: "" }, "older lines are in the log");
		this.lines = h("div.lines");
		const attributes = { role: "log", "aria-live": "off", tabindex: 0, "aria-label": label };
		const box = (this.box = h("div.log", attributes, this.older, this.lines));
		const jump = button("↓ jump to end", "Follow the output", () => {
			this.follow(true);
			box.focus({ preventScroll: true }); // the button disappears now
		});
		jump.classList.add("tfm-jump");
		jump.hidden = true;
		this.el = h("div.logbox", {}, box, jump);
		box.addEventListener("scroll", () => {
			if (!box.clientHeight) return; // it was just hidden
			jump.hidden = this.stick = box.scrollHeight - box.scrollTop - box.clientHeight < 12;
		});
		new ResizeObserver(() => this.follow()).observe(this.lines); // an image was loaded
	}

	follow(isForced) {
		const { isCollapsed, anchorNode } = getSelection();
		const isSelecting = !isCollapsed && this.box.contains(anchorNode);
		if (isForced || (this.stick && !isSelecting)) this.box.scrollTop = 1e9;
	}

	/** Return the index of the first item with this number or a higher one. */
	place(no) {
		return this.items.findLastIndex((item) => item.no < no) + 1;
	}

	drop(from, count = Infinity) {
		this.gone.push(...this.items.splice(from, count).filter((item) => item.node));
		this.dirty = true;
	}

	push(item) {
		this.items.push(item);
		this.dirty = true;
	}

	trim() {
		const surplus = this.items.length - this.limit;
		if (surplus > 0) this.drop(0, surplus);
	}

	touch(item) {
		if (item.node) this.changed.add(item);
		this.dirty = true;
	}

	/** Make at most `budget` elements, for the last items that have none. */
	render(budget, matches) {
		const groups = new Set();
		for (const { node, display } of this.gone) {
			if (node.parentNode?.nodeName === "DETAILS") groups.add(node.parentNode);
			display?.dispose();
			node.remove();
		}
		this.gone = [];
		for (const item of this.changed) if (item.node.isConnected) this.fill(item, matches);
		this.changed.clear();
		const { items } = this;
		const to = items.findLastIndex((item) => !item.node) + 1;
		const from = Math.max(items.findLastIndex((item, place) => place < to && item.node) + 1, to - budget);
		const next = items[to]?.node;
		const fragment = document.createDocumentFragment();
		for (let place = from; place < to; place++) {
			const item = items[place];
			const kind = kindOf(item.raw);
			if (kind === "d") item.display = new Display();
			item.node = item.display?.el ?? h("div.row" + { row: "", html: "", n: " dim", gap: " remark", x: " remark" }[kind]);
			this.fill(item, matches);
			if (kind === "n" && this.foldNoise) {
				let group = items[place - 1]?.node?.parentNode; // the line before is in it if it is noise, too
				if (group?.nodeName !== "DETAILS") fragment.append((group = h("details.noise", {}, h("summary"))));
				group.append(item.node);
				groups.add(group);
			} else fragment.append(item.node);
		}
		this.lines.insertBefore(fragment, next?.closest(".tfm-noise") ?? next ?? null);
		for (const group of groups) {
			const size = group.childElementCount - 1;
			if (size) setText(group.firstChild, `TensorFlow log: ${lineCount(size)}`);
			else group.remove();
		}
		this.older.hidden = !(items[0]?.no > 0);
		this.dirty = items.some((item) => !item.node);
	}

	fill(item, matches) {
		if (item.display) item.display.show(this.rendermime, item.raw.d, item.raw.m);
		else this.fillRow(item);
		this.match(item, matches);
	}

	fillRow({ node, raw }) {
		fillRow(node, raw);
	}

	match(item, matches) {
		const text = textOf(item.raw);
		item.hit = text !== null && (!matches || matches(prefixOf(item) + text));
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

const prefixOf = ({ names }) => (names ? `[${joinNames(names)}]:`.padEnd(14) + " " : "");

/** Return "worker-0,1,2", "chief-0, worker-0..9". */
function joinNames(names) {
	const byType = {};
	for (const name of names) (byType[name.replace(/-\d+$/, "")] ??= []).push(+/\d+$/.exec(name)[0]);
	return Object.entries(byType).map(([type, numbers]) => {
		const runs = [];
		for (const number of numbers.sort((a, b) => a - b)) {
			if (runs.at(-1)?.at(-1) === number - 1) runs.at(-1).push(number);
			else runs.push([number]);
		}
		return `${type}-${runs.map((run) => (run.length > 3 ? `${run[0]}..${run.at(-1)}` : run.join(","))).join(",")}`;
	}).join(", ");
}

/** The rows of all tasks, prefixed; equal rows of several tasks are one. */
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
	}

	add(task, raw) {
		if (raw.d) raw = { x: `[${WIDGET in raw.d ? "widget" : Object.keys(raw.d)[0]}: shown in its task]` };
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

	/** Change a row that was added before (a bar above another one); return its item. */
	amend(item, task, raw) {
		this.touch(item);
		if (item.names.size > 1 && item.names.delete(task.name)) return this.add(task, raw);
		item.raw = raw;
		return item;
	}

	fillRow(item) {
		const { node, raw, task, names } = item;
		const content = h("span");
		fillRow(content, raw);
		const colour = names.size > 1 ? "" : ` c${task.number % 6}`;
		node.replaceChildren(h(`span.prefix${colour}`, {}, prefixOf(item)), content);
		if (names.size > 1) node.append(h("span.times", { title: [...names].join(", ") }, `×${names.size}`));
	}
}

// ---- a task ----

class Task {
	facts = { state: "…" };
	samples = [];
	isChanged = true;

	constructor(panel, { name, type }, number) {
		Object.assign(this, { panel, name, type, number });
		this.log = new Log(`Output of ${name}`, panel.setup, panel.rendermime);
		addSpans(this, "state host line source note last cpu memory");
		this.path = h("path");
		const spark = h("svg", { viewBox: "0 0 60 16", preserveAspectRatio: "none", "aria-hidden": "true" }, this.path);
		const head = h("summary.head", {}, this.state, h("b.name", {}, name), this.host, h("span.where", {}, this.line, this.source),
			this.note, this.last, h("span.usage", {}, this.cpu, spark, this.memory));
		this.body = h("div.body");
		this.el = h("details.task", {}, head, this.body);
		this.el.open = panel.setup.open.includes(number);
		this.el.addEventListener("toggle", () => panel.sendWatch(this));
	}

	/** Called when the task is first opened: so 64 closed tasks are cheap. */
	makeBody() {
		if (this.body.firstChild) return;
		const { panel, number, name } = this;
		const { grace_s: grace, tasks } = panel.setup;
		const ask = (kind) => (element) => panel.ask({ kind, task: number }, element);
		const tool = (label, title, act, aria = label) => button(label, title, act, `${aria} ${name}`);
		const others = grace == null ? "the other tasks go on" : `the other tasks are interrupted ${grace} s later`;
		this.tools = [
			tool("Interrupt", `As Ctrl-C, on ${name}${tasks[1] ? `; ${others}` : ""}`, ask("interrupt")),
			carefulButton("Kill", "End this process; its variables are lost", `Kill ${name} and lose its variables?`,
				ask("kill"), `Kill ${name}`),
			tool("Stacks", "Where each thread is now", ask("stacks"), "Stacks of"),
			tool("Open log", "All of it, in a window", () => panel.whole.open(this, (title) => this.addFold("wholeLog", title)), "Open log of"),
		];
		this.written = h("span.written");
		this.error = h("div.error", { hidden: "" });
		this.body.append(h("div.toolbar", {}, this.written, ...this.tools), this.error, this.log.el);
	}

	get hasFailed() {
		return this.panel.setup.failures.includes(this.facts.state);
	}

	get hasEnded() {
		return this.panel.setup.ends.includes(this.facts.state);
	}

	update(facts) {
		const before = this.facts.state;
		Object.assign(this.facts, facts);
		if (before !== this.facts.state) this.panel.onState(this, before);
		this.isChanged = true;
	}

	/** Called once a second, since the kernel sends only what has changed. */
	sample() {
		const { cpu } = this.facts;
		if (this.hasEnded) return; // what it used stays, as in the form
		const samples = (this.samples = cpu == null ? [] : [...this.samples.slice(-59), cpu]);
		const top = Math.max(100, ...samples);
		const step = 60 / Math.max(samples.length - 1, 12);
		const points = samples.map((value, i) => `${60 - (samples.length - 1 - i) * step} ${15 - (14 * value) / top}`);
		this.path.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
	}

	/** Replace the items from number `base` on. Items that the message repeats unchanged stay. */
	patch({ base, items: raws }, at) {
		const { log } = this;
		const { items } = log;
		if (items.length && base > items.at(-1).no + 1) log.push({ no: base - 1, raw: { gap: null }, at, pos: -1, task: this });
		let place = log.place(base);
		raws.forEach((raw, pos) => {
			const old = items[place++];
			if (old?.no === base + pos && this.change(old, raw)) return;
			if (old) log.drop(place - 1);
			log.push({ no: base + pos, raw, at, pos, task: this });
		});
		log.drop(place);
		log.trim();
	}

	/** Change the item into this one, if it is of the same kind; return whether it is. */
	change(item, raw) {
		if (isSame(item.raw, raw)) return true;
		if (kindOf(item.raw) !== kindOf(raw)) return false;
		item.raw = raw;
		this.log.touch(item);
		if (item.merged && !raw.d) item.merged = this.panel.merged.amend(item.merged, this, raw);
		return true;
	}

	/** Replace displays that the cell has updated in place. */
	replace(raws) {
		for (const key in raws) {
			const item = this.log.items[this.log.place(+key)];
			if (item?.no === +key) this.change(item, raws[key]);
		}
	}

	/** Take a snapshot. Older rows stay if it continues them, since the kernel can repeat one. */
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
		const { state, host, place, source, note, error, last, cpu, memory } = this.facts;
		this.isChanged = false;
		this.el.dataset.state = state;
		const words = error ? `${error.type}: ${error.message}` : last ? rowText(last) : "";
		setTexts(this, {
			state,
			host: host || "",
			line: place || "",
			source: source || "",
			note: note || "",
			last: words.slice(0, 300), // more is not visible, and a long line costs time
			cpu: cpu == null ? "" : `${cpu} %`,
			memory: memory || "",
		});
		if (this.el.open) this.paintBody();
	}

	paintBody() {
		this.makeBody();
		const { written, error } = this.facts;
		const { over } = this.panel.head;
		for (const [place, tool] of this.tools.entries()) setDisabled(tool, over || (!place && this.hasEnded));
		setText(this.written, written ? `${written} written` : "");
		if (isSame(error, this.errorShown)) return;
		this.errorShown = error;
		this.error.hidden = !error;
		if (!error) return;
		const { type, message, at, text } = error;
		const parts = [h("div.message", {}, h("b", {}, type), message && `: ${message}`)];
		if (at) parts.push(h("span.at", {}, at));
		if (text) parts.push(fold("Traceback", text));
		this.error.replaceChildren(...parts);
	}

	addFold(key, title, text) {
		this.makeBody();
		this[key]?.remove();
		this[key] = fold(title, text);
		this[key].open = true;
		this.body.append(this[key]);
		return this[key];
	}
}

// ---- whole logs, in a window or in place ----

/** Asks the kernel for whole logs, while a cell runs and after it. */
class WholeLogs {
	readers = {}; // by the number of the request: the function that takes the parts of a log
	request = Math.floor(Math.random() * 1e9); // other views of this model count, too

	constructor(model, folder) {
		Object.assign(this, { model, folder });
	}

	/** Open the log of a task in a tab; where the browser opens none, in what `makePlace` returns. */
	open({ name, number }, makePlace) {
		const page = window.open("", "_blank")?.document;
		if (page) {
			page.title = `Log of ${name}`;
			page.documentElement.lang = "en";
			page.head.append(h("style", {}, WINDOW_STYLE));
		}
		const root = page?.body.appendChild(h("main", {}, h("h1", {}, page.title))) ?? makePlace(`Log of ${name}`);
		this.readers[++this.request] = showLog(root, this.folder);
		this.model.send({ kind: "log", task: number, request: this.request });
	}

	take(log) {
		this.readers[log.request]?.(log);
	}
}

/** Return a function that takes the parts of a log; `root` can be in another document. */
function showLog(root, folder) {
	const facts = h("p", {}, "waiting for the kernel…");
	const pre = h("pre", { tabindex: 0 });
	let rest = "";
	root.append(facts, pre);
	const timer = setTimeout(setText, SILENT_MS, facts, `no answer: the kernel is busy or has ended. The log is in ${folder}`);
	return ({ path, text, part, parts, skipped }) => {
		clearTimeout(timer);
		facts.textContent = path + (skipped ? ` — the first ${skipped} are left out` : "");
		const lines = (rest + text).split("\n");
		rest = part + 1 < parts ? lines.pop() : "";
		// Blocks are laid out when they become visible: one block of megabytes freezes the browser.
		while (lines.length) {
			const some = lines.splice(0, 400);
			const style = `content-visibility:auto;contain-intrinsic-size:auto ${some.length * 1.5}em`;
			pre.append(h("div", { style }, some.join("\n")));
		}
	};
}

const WINDOW_STYLE = `:root { color-scheme: light dark } body { margin: 16px; font: 13px/1.45 ui-monospace, monospace }
	h1 { font-size: 14px } p { opacity: .7 } pre { font: inherit; white-space: pre-wrap; overflow-wrap: anywhere }`;

// ---- the final form ----

/**
 * Give the form that takes the place of a panel its tools and its focus: the form has no script of its own.
 *
 * A form can be drawn again: with the end of its cell, with a note. It then takes over from the form before.
 */
function handOver(panel) {
	const { area, setup } = panel;
	let { root, focused } = panel;
	if (!area) return;
	let tools = new FormTools(panel);
	const look = () => {
		const form = area.querySelector(`[data-tfmagic="${setup.name}"]`);
		if (!form || form === root) return;
		tools = form.tfmTools ??= tools.add(form); // or those of another view of the panel
		const { activeElement, body } = document;
		const isFree = activeElement === body || root.contains(activeElement); // else the user has moved on
		const next = focused && isFree && placeInForm(form, focused);
		[root, focused] = [form, null];
		followFocus(form, (element) => root === form && (focused = element));
		next?.focus({ preventScroll: true });
	};
	area.tfmFilter?.disconnect();
	area.tfmFilter = new MutationObserver(look);
	area.tfmFilter.observe(area, { childList: true, subtree: true });
	look();
}

/** Call with the element that has got the focus, and with null when it has gone elsewhere; not if it was taken off the page. */
function followFocus(root, note) {
	root.addEventListener("focusin", ({ target }) => note(target));
	root.addEventListener("focusout", () => setTimeout(() => {
		if (root.isConnected && !root.contains(document.activeElement)) note(null);
	}));
}

/** Return what stands in the form for the element that had the focus: the same tool, the same task, or else the form. */
function placeInForm(form, former) {
	const { ariaLabel } = former;
	const task = former.closest(".tfm-task, [data-tfmagic] > details");
	const name = task?.querySelector(".tfm-name, summary b").textContent;
	const tool = ariaLabel && [...form.querySelectorAll("button, input")].find((element) => element.ariaLabel === ariaLabel);
	const heads = [...form.querySelectorAll(":scope > details > summary")];
	const next = tool || (heads.find((head) => head.querySelector("b").textContent === name) ?? form);
	if (next === form) form.tabIndex = -1;
	next.setAttribute(QUIET, "true");
	return next;
}

/** The filter, *merged* and *Open log* of a form; they go on where those of the panel were. */
class FormTools {
	stops = [];

	constructor({ model, context, setup, query, isMerged, tasks, whole }) {
		Object.assign(this, { setup, isMerged, whole, text: query.value, hasKernel: true });
		this.seen = tasks.map(({ log }) => log.items.map(({ raw, at, pos }) => ({ text: textOf(raw), at, pos })));
		model.on("msg:custom", (message) => message?.log && whole.take(message.log));
		model.on("destroy", () => this.loseKernel()); // it keeps the widgets of some cells only
		for (const stop of onKernelEnd(context?.sessionContext, () => this.loseKernel())) this.stops.push(stop);
	}

	loseKernel() {
		this.hasKernel = false;
		for (const stop of this.stops.splice(0)) stop();
		this.form?.querySelectorAll("[aria-label^='Open log of']").forEach((element) => element.remove());
	}

	/** Add the tools to a form, with the text and the switch as they were in the one before. */
	add(form) {
		this.text = this.box?.value ?? this.text; // which may not be applied yet
		Object.assign(this, { form, logs: null, merged: null });
		this.heads = [...form.querySelectorAll(":scope > details")];
		this.box = searchBox((text) => this.filter(text));
		this.box.value = this.text;
		this.found = h("span.found");
		const tools = h("span.tools", {}, this.found, this.box);
		if (this.heads.length) tools.append((this.switch = mergedSwitch(() => this.merge(!this.isMerged))));
		tools.addEventListener("keydown", (event) => event.stopPropagation());
		form.addEventListener("mousedown", (event) => event.target.closest(".tfm-button") && event.preventDefault()); // as in the panel
		form.firstElementChild.append(tools);
		if (this.hasKernel) for (const head of this.heads) this.addOpener(head);
		if (this.isMerged && this.heads.length) this.merge(true);
		if (this.text.trim()) this.filter(this.text.trim());
		return this;
	}

	/** Return the task of an element of the form. */
	taskOf(head) {
		const name = head.querySelector("b").textContent;
		return { name, number: this.setup.tasks.findIndex((task) => task.name === name) };
	}

	addOpener(head) {
		const task = this.taskOf(head);
		const body = head.lastElementChild;
		const makePlace = (title) => body.appendChild(fold(title));
		const open = () => this.whole.open(task, makePlace);
		body.firstElementChild.append(button("Open log", "All of it, in a window", open, `Open log of ${task.name}`));
	}

	/** Read the lines of the form, once: most forms get no filter. */
	read() {
		this.logs ??= this.heads.map((head) => {
			const task = this.taskOf(head);
			const prefix = prefixOf({ names: [task.name] });
			const parts = head.querySelectorAll(":scope > div > div > div > :is(pre, div), :scope > div > div > div > details > pre");
			const blocks = [...parts].map((block) => {
				if (block.nodeName === "DIV") return { raws: [{ x: "[display: shown in its task]" }], texts: [] };
				const texts = block.textContent.split("\n");
				const isNoise = block.parentNode.nodeName === "DETAILS";
				const lines = block.innerHTML.split("\n"); // no element of a line goes on in the next one
				const raws = texts.map((text, place) => (isNoise ? { n: text } : { text, html: lines[place] }));
				return { block, lines, raws, texts: texts.map((text) => prefix + text) };
			});
			return { task, blocks };
		});
		return this.logs;
	}

	filter(text) {
		const { matches, error } = filterOf(text);
		Object.assign(this, { text, matches });
		let [count, total] = [0, 0];
		for (const { block, lines, texts } of this.read().flatMap(({ blocks }) => blocks)) {
			if (!block) continue;
			const kept = lines.filter((_, place) => !matches || matches(texts[place]));
			count += kept.length;
			total += lines.length;
			block.innerHTML = kept.join("\n");
		}
		this.merged?.filter(matches);
		this.box.ariaInvalid = !!error;
		setText(this.found, error ?? (matches ? `${count} of ${lineCount(total)}` : ""));
	}

	merge(isMerged) {
		this.isMerged = isMerged;
		this.switch.ariaChecked = isMerged;
		this.form.classList.toggle("tfm-merged", isMerged);
		if (!this.merged) {
			this.merged = new MergedLog({ ...this.setup, row_limit: Infinity });
			for (const { task, raw } of this.inOrder()) this.merged.add(task, raw);
			this.heads.at(-1).after(this.merged.el);
		}
		this.merged.el.hidden = !isMerged;
		this.paint();
	}

	paint() {
		this.merged.render(FRAME_ROWS, this.matches);
		this.merged.follow();
		if (this.merged.dirty) requestAnimationFrame(() => this.paint());
	}

	/** Return all lines, as a panel would merge them that was asked now: those that it has not seen come last. */
	inOrder() {
		const found = this.read().flatMap(({ task, blocks }) => {
			const seen = new Map();
			this.seen[task.number]?.forEach((item, place) => {
				if (!seen.has(item.text)) seen.set(item.text, []);
				seen.get(item.text).push({ ...item, place });
			});
			let last = { at: -1, pos: 0, place: -1 };
			const items = blocks.flatMap(({ raws }) => raws).map((raw) => {
				const equal = seen.get(textOf(raw)) ?? [];
				while (equal[0]?.place <= last.place) equal.shift();
				const { at, pos } = (last = equal[0] ?? last);
				return { task, raw, at, pos, isSeen: !!equal[0] };
			});
			const end = items.findLastIndex(({ isSeen }) => isSeen) + 1;
			items.slice(end).forEach((item, place) => Object.assign(item, { at: Infinity, pos: place }));
			return items;
		});
		return found.sort((a, b) => (a.at === b.at ? a.pos - b.pos : a.at - b.at));
	}
}

// ---- the panel ----

/** Tell the user that the cell is over, also in another tab: once, however many views show it. */
function notify(setup, body) {
	if (globalThis.Notification?.permission !== "granted") return;
	new Notification(`tfmagic: cluster ${setup.cluster}`, { body, tag: setup.name });
}

/** Connect a slot of JupyterLab; return a function that takes it away. */
function follow(signal, slot) {
	signal.connect(slot);
	return () => signal.disconnect(slot);
}

/** Call `act` when the kernel of a session ends or is another one; return functions that end this. */
function onKernelEnd(session, act) {
	if (!session) return [];
	const isEnd = /^(restarting|autorestarting|terminating|dead)$/;
	return [
		follow(session.statusChanged, (_, status) => isEnd.test(status) && act()),
		follow(session.kernelChanged, (_, { oldValue }) => oldValue && act()),
	];
}

class Panel {
	view = Math.random(); // of several of this model
	messages = 0;
	opened = 0;
	ticks = 0;
	isMerged = false;
	news = [];
	reported = {}; // when, by what it says
	unfollow = [];
	values = [];
	since = performance.now();

	constructor(model, el) {
		this.model = model;
		this.rendermime = model.widget_manager?.rendermime;
		if (this.rendermime) managers.set(this.rendermime, model.widget_manager);
		const setup = (this.setup = model.get("setup"));
		this.whole = new WholeLogs(model, setup.log_hint);
		this.head = { done: 0, total: setup.tasks.length, over: false };
		this.merged = new MergedLog(setup);
		const tasks = (this.tasks = setup.tasks.map((spec, number) => new Task(this, spec, number)));
		this.logs = [this.merged, ...tasks.map((task) => task.log)];
		this.watched = this.watchRequest(); // the kernel begins with it
		this.waiting = h("div.waiting", { hidden: "" }, "waiting for the kernel…");
		this.hintsBox = h("div.hints");
		this.hints = [];
		this.valuesBox = h("div.values");
		this.figuresBox = h("div.figures");
		this.figures = {}; // by name: an image
		this.root = h("div.root", { [QUIET]: "true" }, this.makeHeader(), this.hintsBox, this.waiting,
			...this.makeLists(), this.merged.el, this.figuresBox, this.valuesBox);
		this.root.style.setProperty("--tfm-name", `${Math.max(...tasks.map((task) => task.name.length)) + 1}ch`);
		this.root.addEventListener("keydown", (event) => {
			event.stopPropagation();
			if (event.key === "Escape") this.root.closest(".jp-Cell")?.focus(); // the keys are the notebook's again
		});
		this.root.addEventListener("mousedown", (event) => {
			if (event.target.closest("summary, button")) event.preventDefault(); // Lab keeps the focus
		});
		followFocus(this.root, (element) => (this.focused = element));
		el.append(this.root);
		liveRegion(); // before it has a line: one that comes with its text is not read
		this.onMessage = (message) => {
			if (message?.kind === "update") this.receive(message);
			if (message?.kind === "form") this.keepForm(message);
		};
		model.on("msg:custom", this.onMessage);
		this.context = model.widget_manager?.context; // of the notebook, in JupyterLab and Notebook 7
		this.followKernel(this.context?.sessionContext);
		if (setup.notifies && globalThis.Notification?.permission === "default") Notification.requestPermission();
		this.sayHello(4);
		this.timer = setInterval(() => this.tick(), 250);
		this.beat = setInterval(() => this.head.over || model.send(this.watchRequest()), BEAT_MS);
		setTimeout(() => (this.waiting.hidden = this.messages > 0), 1500);
		this.schedule();
	}

	/** Ask for a snapshot, each second until one has come: a kernel can be busy, a message can be lost. */
	sayHello(times) {
		if (this.messages || (times < 4 && !this.root.isConnected)) return;
		this.root.hidden = !times; // it may never come: the saved form is below
		if (!times) return;
		this.hello();
		setTimeout(() => this.sayHello(times - 1), 1000);
	}

	/** Say hello: the answer is a snapshot, and the form when the cell is over. */
	hello() {
		const notebook = this.context ?? window; // opened again, it does not get the form as a display
		notebook.tfmPage ??= Math.random();
		this.model.send({ kind: "hello", page: notebook.tfmPage, view: this.view });
	}

	/** Notice the end of the kernel, and a lost connection. */
	followKernel(session) {
		if (!session) return;
		const onConnection = (_, status) => {
			this.isOffline = status !== "connected";
			this.schedule();
		};
		this.unfollow = [...onKernelEnd(session, () => this.loseKernel()), follow(session.connectionStatusChanged, onConnection)];
	}

	/** Show that no task can run any more, but those of a cluster that is kept. */
	loseKernel() {
		if (this.head.over) return;
		const took = `${((performance.now() - this.since) / 1000).toFixed(1)} s`;
		const { attach, kept } = this.setup;
		const tasks = kept ? "; its tasks go on:" : ", and its tasks with it; all they wrote:";
		const message = `the kernel of this cell was restarted or has ended${tasks}  ${attach}`;
		const end = kept ? { note: "goes on without its kernel" } : { state: "stopped", note: "ended with its kernel" };
		for (const task of this.tasks) {
			if (!task.hasEnded) task.update({ ...end, place: "", source: "", cpu: null, memory: "" });
		}
		this.messages++;
		this.receiveHead({ over: true, verdict: "kernel ended", words: "kernel ended", sign: "■", took, message });
		this.end();
		this.schedule();
	}

	/** Put a form into the notebook's model; without `data`, this page has it as a display, and only the panel goes. */
	keepForm({ data, over }) {
		const isShared = this.context?.model?.collaborative; // then one page puts it there for all
		if (data && isShared) return setTimeout(() => this.keepNow({ data, over }), 1000 + 2000 * Math.random());
		this.keepNow({ data, over });
	}

	keepNow({ data, over }) {
		for (const { outputs, sharedModel } of this.context?.model?.cells ?? []) {
			for (let place = (outputs?.length ?? 0) - 1; place >= 0; place--) {
				const { data: old, metadata } = outputs.get(place);
				const { tfmagic: mark } = metadata;
				if (!mark || `${mark.run}/${mark.cell}` !== this.setup.name) continue;
				if (!mark.live && data && !isSame(old, data)) outputs.set(place, { output_type: "display_data", data, metadata });
				const isEmpty = !Object.keys(old).length; // other pages of a shared notebook have it at another place
				if (mark.live && over && !(isEmpty && this.context.model.collaborative)) sharedModel.updateOutputs(place, place + 1, []);
			}
		}
		if (!over || this.context) return;
		if (data) this.root.innerHTML = data["text/html"] ?? ""; // sanitized
		else this.hello();
	}

	makeHeader() {
		const { cell, cluster, shape } = this.setup;
		addSpans(this, "icon elapsed done counts words found");
		this.query = searchBox(() => this.filter());
		this.switch = mergedSwitch(() => this.merge());
		const ask = (kind) => (element) => this.ask({ kind }, element);
		this.buttons = [
			button("Interrupt", "Interrupt every task, as Ctrl-C; the variables stay", ask("interrupt")),
			carefulButton("Stop", "End every task of the cluster; their variables are lost",
				"Stop the cluster and lose all variables?", ask("stop")),
		];
		this.bar = h("div");
		const progress = { role: "progressbar", "aria-label": "Tasks that are done", "aria-valuemin": 0 };
		this.progress = h("div.bar", progress, this.bar);
		this.icon.ariaHidden = "true";
		return h("div.header", { role: "group", "aria-label": `Cell ${cell} on cluster ${cluster}` },
			h("div.facts", {}, this.icon, h("b.cluster", {}, cluster), h("span.shape", {}, shape), this.elapsed, this.done,
				this.counts, this.words),
			h("div.tools", {}, this.found, this.query, this.switch, ...this.buttons), this.progress);
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
		return [h("div.groups", {}, ...elements(this.groups))];
	}

	receive({ reset, head, tasks = {}, rows = {}, replaced, values, figures, hints, stacks, log }) {
		const at = ++this.messages;
		this.area ??= this.root.closest(".jp-OutputArea"); // a cell can be over before the first frame
		this.waiting.hidden = true;
		this.root.hidden = false;
		this.root.classList.add("tfm-live");
		if (head) this.receiveHead(head);
		if (reset) this.reset(tasks, rows, at);
		const isLater = (key) => tasks[key].error?.root === false;
		for (const key of Object.keys(tasks).sort((a, b) => isLater(a) - isLater(b))) this.tasks[key]?.update(tasks[key]);
		if (hints) this.showHints(hints);
		this.end(); // after the news of its tasks
		if (!reset) for (const key in rows) this.tasks[key]?.patch(rows[key], at);
		for (const key in replaced) this.tasks[key]?.replace(replaced[key]);
		if (values) this.showValues(values);
		if (figures) this.showFigures(figures);
		for (const key in stacks) {
			const title = `Stacks at ${new Date().toLocaleTimeString("en-GB")}`;
			this.tasks[key]?.addFold("stacks", title, stacks[key]);
		}
		if (log) this.whole.take(log);
		this.schedule();
	}

	receiveHead(head) {
		const { message } = head; // its short words, names and numbers change all the time
		if (message && message !== this.head.message) this.report(message, [...new Set(message.match(/[a-z_.]{6,}/gi))].sort().join());
		Object.assign(this.head, head);
		if ("elapsed" in head) this.since = performance.now() - head.elapsed * 1000;
	}

	/**
	 * Tell a sentence, unless the same was told a short time ago: tasks of a loop stall, run, and stall again.
	 * What has a higher rank is told after the rest: first the cause, then its consequences, then the end.
	 */
	report(sentence, gist = sentence, rank = 0) {
		const now = performance.now();
		if (now - (this.reported[gist] ?? -Infinity) < AGAIN_MS) return;
		this.reported[gist] = now;
		this.news.push({ sentence, rank });
	}

	/** Say once that the cell is over. */
	end() {
		if (!this.head.over || !this.timer) return;
		this.timer = clearInterval(this.timer);
		for (const task of this.tasks) task.isChanged = true;
		if (this.messages <= 1) return;
		const { cells } = liveRegion();
		if (cells.has(this.setup.name)) this.news = []; // its form was here first, and has said it all
		else this.news.push({ sentence: `Cell ${this.setup.cell} is over: ${this.head.verdict}`, rank: 2 });
		cells.add(this.setup.name);
		if (this.head.notice) notify(this.setup, this.head.notice);
	}

	reset(tasks, rows, at) {
		this.merged.clear();
		for (const task of this.tasks) task.reset(rows[task.number], at);
		// The kernel can still send what an older page had open, and not what this one has open.
		if (this.watchRequest().tasks.every((number) => rows[number])) return;
		this.watched = null;
		this.sendWatch();
	}

	/** Show charts, SVG by name; as an image, in which no script can run. */
	showFigures(figures) {
		for (const [name, svg] of Object.entries(figures)) {
			if (!this.figures[name]) this.figuresBox.append((this.figures[name] = h("img")));
			this.figures[name].src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
			this.figures[name].alt = this.figures[name].title = /<title>(.*?)<\/title>/.exec(svg)?.[1] ?? name;
		}
	}

	/** Show a bar for each hint, and read out those that are new. */
	showHints(hints) {
		const known = this.hints.map(({ advice }) => advice);
		for (const { advice } of hints) if (!known.includes(advice)) this.report(`Hint: ${advice}`);
		this.hints = hints;
		const bars = hints.map(({ advice, tasks, more }) =>
			h("div.hint", { role: "note" }, h("b", {}, tasks ? `Hint for ${tasks}` : "Hint"), `: ${advice}${more && ` (${more})`}`));
		this.hintsBox.replaceChildren(...bars);
	}

	showValues(values) {
		for (const display of this.values) display.dispose();
		this.values = values.map(() => new Display());
		const rows = values.map(({ names, data, metadata }, place) => {
			this.values[place].show(this.rendermime, data, metadata);
			return h("div.value", {}, h("span.label", {}, names), this.values[place].el);
		});
		this.valuesBox.replaceChildren(...rows);
	}

	onState(task, before) {
		const { state, note, error } = task.facts;
		const why = error ? `${error.type}: ${error.message}` : note;
		const isNew = before !== "…" || !this.head.over;
		const isLater = error?.root === false;
		const sentence = `${task.name} ${state}${isLater ? " as a consequence" : ""}${why ? `: ${why}` : ""}`;
		if (isNew && this.setup.announced.includes(state)) this.report(sentence, sentence, isLater ? 1 : 0);
		if (!task.hasFailed) return;
		if (task.wasOpened || (this.groups.length && this.opened > 3)) return;
		task.wasOpened = task.el.open = true;
		this.opened++;
	}

	ask(message, element) {
		this.model.send(message);
		const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
		if (!isCalm) element.animate({ opacity: [0.3, 1] }, 500); // shows that the click was received
	}

	watchRequest() {
		const tasks = this.tasks.filter((task) => task.el.open).map((task) => task.number);
		return { kind: "watch", tasks, merged: this.isMerged };
	}

	/** Called when a panel was opened or closed, or the stream switched. */
	sendWatch(task = {}) {
		task.isChanged = true;
		this.schedule();
		clearTimeout(this.watchTimer);
		this.watchTimer = setTimeout(() => {
			const request = this.watchRequest();
			if (!isSame(request, this.watched)) this.model.send((this.watched = request));
		}, 50);
	}

	merge() {
		this.isMerged = !this.isMerged;
		this.switch.ariaChecked = this.isMerged;
		this.root.classList.toggle("tfm-merged", this.isMerged);
		this.merged.el.hidden = !this.isMerged;
		this.sendWatch();
	}

	filter() {
		const { matches, error } = filterOf(this.query.value.trim());
		Object.assign(this, { matches, filterError: error });
		this.query.ariaInvalid = !!error;
		for (const log of this.logs) log.filter(this.matches);
		this.schedule();
	}

	schedule() {
		this.frame ??= requestAnimationFrame(() => this.flush());
	}

	flush() {
		this.frame = undefined;
		for (const task of this.tasks) if (task.isChanged) task.paint();
		if (this.isMerged) this.mergeFinished();
		const written = this.seenLogs().filter((log) => log.dirty);
		for (const log of written) log.render(Math.ceil(FRAME_ROWS / written.length), this.matches);
		this.paintHead();
		this.tell();
		for (const log of written) log.follow(); // after all writing, so that one layout is enough
		if (written.some((log) => log.dirty)) setTimeout(() => this.schedule(), 50);
	}

	/** Read out what has happened; not more often than one can listen to, but for the end. */
	tell() {
		clearTimeout(this.tellTimer);
		if (!this.news.length) return;
		const pause = this.head.over ? 0 : (this.toldAt ?? -Infinity) + TOLD_MS - performance.now();
		if (pause > 0) {
			this.tellTimer = setTimeout(() => this.tell(), pause);
			return;
		}
		const sentences = this.news.splice(0).sort((a, b) => a.rank - b.rank).map(({ sentence }) => sentence.slice(0, TOLD_CHARACTERS));
		if (sentences.length > 4) sentences.splice(3, sentences.length - 4, `and ${sentences.length - 4} more`);
		announce(sentences.join(". "));
		this.toldAt = performance.now();
	}

	seenLogs() {
		return this.isMerged ? [this.merged] : this.tasks.filter((task) => task.el.open).map((task) => task.log);
	}

	mergeFinished() {
		const end = this.head.over ? undefined : -1; // the last one may still change
		const found = this.tasks.flatMap(({ log }) => log.items.slice(0, end).filter((item) => !item.merged));
		found.sort((a, b) => a.at - b.at || a.pos - b.pos); // in the order of arrival, the tasks in turn
		for (const item of found) item.merged = this.merged.add(item.task, item.raw);
		this.merged.trim();
	}

	paintHead() {
		const { done, total, over, verdict, words, sign, message } = this.head;
		this.root.dataset.verdict = verdict || "";
		this.root.dataset.failed = this.tasks.some((task) => task.hasFailed);
		setTexts(this, {
			icon: sign || "",
			done: words || "",
			words: this.isOffline && !over ? "no connection to the kernel: this can be old" : message || "",
			found: this.filterError ?? (this.matches ? this.countFound() : ""),
		});
		this.bar.style.width = `${over ? 100 : (100 * done) / Math.max(total, 1)}%`;
		Object.assign(this.progress, { ariaValueNow: done, ariaValueMax: total, ariaValueText: words || `${done} of ${total}` });
		for (const element of this.buttons) setDisabled(element, over);
		const badges = this.countStates(this.tasks).filter(({ state }) => state !== "done");
		const count = this.hints.length;
		if (count) badges.push({ state: "hint", text: `${count} hint${count > 1 ? "s" : ""}` });
		if (this.counts.textContent !== badges.map(({ text }) => text).join("")) {
			this.counts.replaceChildren(...badges.map(({ state, text }) => h("span.state", { "data-state": state }, text)));
		}
		for (const { tasks, counts, el } of this.groups) {
			el.dataset.failed = tasks.some((task) => task.hasFailed);
			setText(counts, this.countStates(tasks).map(({ text }) => text).join(", "));
		}
		this.paintElapsed();
	}

	countStates(tasks) {
		const count = (state) => tasks.filter(({ facts }) => facts.state === state).length;
		return this.setup.states.filter(count).map((state) => ({ state, text: `${count(state)} ${state}` }));
	}

	countFound() {
		const logs = this.seenLogs();
		const lines = logs.flatMap((log) => log.items).filter((item) => textOf(item.raw) !== null);
		const last = logs.some((log) => !log.older.hidden || log.items.some(({ raw }) => kindOf(raw) === "gap")) ? "the last " : "";
		return `${lines.filter((item) => item.hit).length} of ${last}${lineCount(lines.length)}`;
	}

	paintElapsed() {
		const { over, took } = this.head;
		setText(this.elapsed, over ? took : clockText((performance.now() - this.since) / 1000));
	}

	tick() {
		this.paintElapsed();
		if (++this.ticks % 4 === 0) for (const task of this.tasks) task.sample();
	}

	dispose() {
		this.model.off("msg:custom", this.onMessage);
		clearInterval(this.timer);
		clearInterval(this.beat);
		clearTimeout(this.watchTimer);
		if (this.head.over) this.tell();
		clearTimeout(this.tellTimer);
		for (const stop of this.unfollow) stop();
		cancelAnimationFrame(this.frame);
		for (const log of this.logs) log.dispose();
		for (const display of this.values) display.dispose();
		handOver(this);
		this.root.remove();
	}
}

export default {
	/** Called for each model, also where no view of it is displayed: then it is here to read out a form. */
	initialize() {
		liveRegion();
	},
	render({ model, el }) {
		const panel = new Panel(model, el);
		return () => panel.dispose();
	},
};
