import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.io.ByteArrayInputStream;

/** The JDK's HttpClient as it is by default: it asks for h2c on every new connection. Prints a status per line. */
public class upgrades {
    static HttpClient client;

    static void send(String method, String url, String type, BodyPublisher body, String... headers) throws Exception {
        var request = HttpRequest.newBuilder(URI.create(url)).header("Content-Type", type).method(method, body);
        for (int i = 0; i < headers.length; i += 2) request.header(headers[i], headers[i + 1]);
        System.out.println(method + " " + client.send(request.build(), BodyHandlers.ofString()).statusCode());
    }

    public static void main(String[] args) throws Exception {
        String base = args[0], text = "text/plain";
        BodyPublisher chunked = BodyPublishers.ofInputStream(() -> new ByteArrayInputStream("two,".getBytes()));
        Object[][] steps = {
            {"PUT", "/jdks/stream", text, BodyPublishers.ofString("one,"), new String[] {}},
            {"POST", "/jdks/stream", text, chunked, new String[] {}},
            {"POST", "/jdks/stream", text, BodyPublishers.ofString("x".repeat(300_000) + ","), new String[] {}},
            {"POST", "/jdks/stream", text, BodyPublishers.ofString("last"), new String[] {"Stream-Closed", "true"}},
            {"PUT", "/jdks/other", text, BodyPublishers.ofString("ab"), new String[] {}},
            {"PUT", "/jdks/other/snapshot/" + String.format("%020d", 2), "application/json",
                BodyPublishers.ofString("{\"n\":1}"), new String[] {}},
        };
        for (Object[] step : steps) {
            client = HttpClient.newHttpClient();  // a new one has no connection yet: it asks again
            send((String) step[0], base + step[1], (String) step[2], (BodyPublisher) step[3], (String[]) step[4]);
        }
        client = HttpClient.newHttpClient();
        System.out.println(client.send(HttpRequest.newBuilder(URI.create(base + "/jdks/stream?offset=-1")).build(),
            BodyHandlers.ofString()).body().length());
    }
}
