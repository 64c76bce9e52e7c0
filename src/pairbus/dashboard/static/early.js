// Ask for the overview while the modules are still loading: the first paint then waits for one answer less.
// Without a token in the address only; with one, the page must keep it first.
if (!/[#&]token=/.test(location.hash)) {
  const token = sessionStorage.getItem("pairbus-token");
  globalThis.pairbusEarly = fetch("/$pairbus/page/api/overview", { cache: "no-store", headers: { "X-Pairbus-Page": "1", ...(token ? { "X-Pairbus-Token": token } : {}) } });
  globalThis.pairbusEarly.catch(() => {}); // api.js tells why
}
