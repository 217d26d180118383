/* The order of what a search finds. Sphinx looks at one word of the query; this, at how many words of it a heading has
   with the title of its page. A page is shown at that heading. Names of Python come first only where the query looks
   like one. */

const stemsOf = (text) => {
  const stemmer = new Stemmer();
  const words = splitQuery(`${text} ${text.replace(/([a-z])([A-Z])|_/g, "$1 $2")}`.toLowerCase());
  return new Set(words.filter((word) => !stopwords.has(word)).map((word) => stemmer.stemWord(word)));
};

const share = (query, heading, title) => {
  const wanted = [...stemsOf(query)];
  const foundIn = (words) => (word) =>
    words.has(word) || (word.length > 3 && [...words].some((other) => other.startsWith(word)));
  const own = stemsOf(heading);
  const here = wanted.filter(foundIn(own)).length;
  const all = wanted.filter(foundIn(stemsOf(`${heading} ${title}`))).length;
  const phrase = heading.toLowerCase().indexOf(query.toLowerCase().trim());
  const density = phrase === 0 ? 1 : Math.max(phrase > 0 ? 0.7 : 0, here / Math.max(own.size, here, 1));
  return here ? (all / wanted.length) ** 2 * (0.6 + 0.4 * density) : 0;
};

const headingsOf = (page) => {
  const { alltitles, docnames, titles } = Search._index;
  const place = docnames.indexOf(page);
  return Object.entries(alltitles).flatMap(([heading, places]) =>
    places
      .filter(([file]) => file === place)
      .map(([, id]) => [heading, id, titles[place] === heading ? heading : `${titles[place]} > ${heading}`]),
  );
};

const FOR_FEW = /^(CHANGELOG|CONTRIBUTING|benchmarks|inside|releasing|notebooks\/)/;

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,

  score: (result) => {
    const [page, title, , , score, , kind] = result;
    const query = new URLSearchParams(location.search).get("q") || "";
    if (kind === "object") return /[._A-Z(]/.test(query) ? score + 10 : 4;
    if (!stemsOf(query).size) return score;
    let best = kind === "title" ? share(query, title.split(" > ").pop(), title) : 0;
    if (kind === "text")
      for (const [heading, id, shown] of headingsOf(page)) {
        const here = share(query, heading, shown);
        if (here <= best) continue;
        best = here;
        result[1] = shown;
        result[2] = id === null ? "" : `#${id}`;
      }
    return 5 + 15 * best - (FOR_FEW.test(page) ? 5 : 0);
  },
};
