// The order of search results: how to use Hedgerow first, its protobufs and decisions last.
const USE = /^(quickstart|python|concepts|glossary|how-to|which-strategy|strategies|file-formats|trust|report|console|serving|audit|weights|scripts|by-hand|coming-from|parameter-search|notebooks|api\/(commands|library|jobs|metrics|settings))/;
const INSIDE = /^(api|adr|wire|masks|crypto|architecture|style|contributing|write-a|walk-|how-it|licences|results-)/;

var Scorer = {
  score: ([page, title, anchor, text, score]) =>
    score * (USE.test(page) ? 3 : INSIDE.test(page) ? 0.2 : 1),
  // The rest is Sphinx's own.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
