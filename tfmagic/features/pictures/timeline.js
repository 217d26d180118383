// Zoom and select in the picture of a timeline. It runs where the notebook is trusted; elsewhere the image stays.
// Elements with data-a (and data-b) belong to a time, in seconds from the left edge: see timeline_svg.py.
(() => {
	const upgrade = (root) => {
		root.dataset.live = "1";
		const image = root.querySelector("img");
		const [left, wide, whole] = root.dataset.plot.split(",").map(Number);
		const bytes = Uint8Array.from(atob(image.src.split(",")[1]), (c) => c.charCodeAt(0));
		const read = new DOMParser().parseFromString(new TextDecoder().decode(bytes), "image/svg+xml");
		const svg = document.importNode(read.documentElement, true);
		const id = Math.random().toString(36).slice(2); // several pictures on a page have the same names inside
		for (const element of svg.querySelectorAll("*"))
			for (const name of ["id", "fill", "clip-path", "marker-end"]) {
				const value = element.getAttribute(name);
				if (name === "id") value && element.setAttribute(name, value + id);
				else if (value?.startsWith("url(#")) element.setAttribute(name, value.replace(")", `${id})`));
			}
		svg.id = `p${id}`; // its style is of the whole page now: it is for this picture, by the page's theme
		const sheet = svg.querySelector("style");
		sheet.textContent = sheet.textContent.replace("@media (prefers-color-scheme: dark)", `:is([data-jp-theme-light="false"], .vscode-dark) #p${id}`);
		svg.style.cssText = "display:block;width:100%;height:auto";
		image.parentNode.replaceChildren(svg);
		const said = document.createElement("div");
		const hint = "Drag to zoom into a time, double-click for the whole; Ctrl and the wheel zoom; click selects.";
		said.style.cssText = "font-size:12px;white-space:pre-wrap;padding:2px 4px";
		said.textContent = hint;
		said.ariaLive = "polite";
		const tools = document.createElement("div");
		tools.style.cssText = "display:flex;flex-wrap:wrap;gap:4px;padding:4px";
		root.append(tools, said);

		let [from, to] = [0, whole];
		const x = (seconds) => left + ((seconds - from) / (to - from)) * wide;
		const time = (event) => {
			const box = svg.getBoundingClientRect();
			return from + (((event.clientX - box.left) * (svg.viewBox.baseVal.width / box.width) - left) / wide) * (to - from);
		};
		const draw = () => {
			for (const element of svg.querySelectorAll("[data-a]")) {
				const a = Number(element.dataset.a);
				const b = Number(element.dataset.b ?? a);
				const first = Math.max(x(a), left);
				const width = Math.min(x(b), left + wide) - first;
				if (element.tagName === "g") element.setAttribute("transform", `translate(${x(a)} 0)`);
				else if (element.tagName === "text") {
					element.setAttribute("x", first + 4);
					element.setAttribute("visibility", width > Number(element.dataset.w) ? "visible" : "hidden");
				} else {
					element.setAttribute("x", first);
					element.setAttribute("width", Math.max(width, width > -0.6 ? 0.6 : 0));
				}
			}
			drawAxis();
		};
		const axis = svg.querySelector(".axis");
		const tick = { line: axis.querySelector("path"), name: axis.querySelector("text") };
		const drawAxis = () => {
			let step = 10 ** Math.floor(Math.log10(to - from));
			while ((to - from) / step < 4) step /= 2;
			const marks = [];
			for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
				const [line, name] = [tick.line.cloneNode(true), tick.name.cloneNode(true)];
				line.setAttribute("d", line.getAttribute("d").replace(/^M[\d.]+/, `M${x(at)}`));
				const isLast = x(at) > left + wide - 20; // there is no room on its right
				name.setAttribute("x", x(at) + (isLast ? -3 : 3));
				name.setAttribute("text-anchor", isLast ? "end" : "start");
				name.textContent = `${Number(at.toPrecision(6))} s`;
				marks.push(line, name);
			}
			axis.replaceChildren(...marks);
		};
		const zoom = (a, b) => {
			[from, to] = [Math.max(Math.min(a, b), 0), Math.min(Math.max(a, b), whole)];
			if (to - from < whole / 1e5) [from, to] = [0, whole];
			draw();
		};

		let dragged = null;
		const band = svg.querySelector(".band");
		svg.addEventListener("pointerdown", (event) => {
			dragged = time(event);
			svg.setPointerCapture(event.pointerId);
		});
		svg.addEventListener("pointermove", (event) => {
			if (dragged === null) return;
			const ends = [x(dragged), x(time(event))].sort((a, b) => a - b);
			band.setAttribute("x", ends[0]);
			band.setAttribute("width", ends[1] - ends[0]);
			band.setAttribute("height", svg.viewBox.baseVal.height - 60);
		});
		svg.addEventListener("pointerup", (event) => {
			const [a, b] = [dragged, time(event)];
			dragged = null;
			band.setAttribute("height", 0);
			if (a !== null && Math.abs(x(a) - x(b)) > 6) zoom(a, b);
			else select(document.elementFromPoint(event.clientX, event.clientY));
		});
		svg.addEventListener("dblclick", () => zoom(0, whole));
		svg.addEventListener("wheel", (event) => {
			if (!event.ctrlKey && !event.metaKey) return;
			event.preventDefault();
			const [at, factor] = [time(event), event.deltaY > 0 ? 1.25 : 0.8];
			zoom(at - (at - from) * factor, at + (to - at) * factor);
		}, { passive: false });
		let chosen = null;
		const select = (element) => {
			for (const old of svg.querySelectorAll(".chosen")) {
				old.classList.remove("chosen");
				old.setAttribute("stroke-width", 0.5);
			}
			chosen = element?.closest?.("[data-a]");
			said.textContent = chosen?.querySelector("title")?.textContent ?? hint;
			if (chosen?.classList.contains("span")) {
				chosen.classList.add("chosen");
				chosen.setAttribute("stroke-width", 2.5);
			}
		};

		// the same by keyboard
		const walk = (by) => {
			const all = [...svg.querySelectorAll("[data-a]")].filter((element) => element.querySelector(":scope > title"));
			all.sort((one, other) => one.dataset.a - other.dataset.a);
			const place = all.indexOf(chosen);
			select(all.at(place < 0 ? Math.min(by, 0) : (place + by) % all.length));
			const at = Number(chosen?.dataset.a);
			if (at < from || at > to) zoom(at - (to - from) / 2, at + (to - from) / 2);
		};
		const scale = (factor) => {
			const [middle, half] = [Number(chosen?.dataset.a ?? (from + to) / 2), ((to - from) / 2) * factor];
			zoom(middle - half, middle + half);
		};
		const addTool = (name, act) => {
			const button = document.createElement("button");
			Object.assign(button, { type: "button", textContent: name });
			button.style.cssText = "padding:0 8px;height:24px;border:1px solid #7d8590;border-radius:5px;font-size:12px;color:inherit;background:none";
			button.addEventListener("click", act);
			tools.append(button);
		};
		addTool("Previous", () => walk(-1));
		addTool("Next", () => walk(1));
		addTool("Zoom in", () => scale(0.5));
		addTool("Zoom out", () => scale(2));
		addTool("Whole", () => zoom(0, whole));
	};
	const upgradeAll = (left) => {
		for (const root of document.querySelectorAll(".tfmagic-timeline:not([data-live])")) upgrade(root);
		if (left) setTimeout(upgradeAll, 200, left - 1); // the output can be put on the page later than the script runs
	};
	upgradeAll(5);
})();
