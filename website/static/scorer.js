// The order of search results: Sphinx's own scores, and more for a title with words of the query and
// for a page that explains or guides, so that "poisson sampling" finds the pages about it first.
const asked = (new URLSearchParams(location.search).get("q") || "").toLowerCase().match(/\w+/g) || [];
var Scorer = {
  score: ([page, title, , , score]) =>
    score + 4 * asked.filter(word => title.toLowerCase().includes(word)).length
      + (/^docs\/(tutorials|how-to|explanation)\//.test(page) ? 5 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
